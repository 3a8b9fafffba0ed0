// Which parts of a model have arrived in device memory, and waiting for those that an operation reads.
//
// A model's range is divided into blocks of 16 KiB with one bit each. Whoever copies sets bits (publish); an operation
// asks for the bytes it reads (wait_ready). What it asks for and is not there is also *demanded*: the copier takes it
// next, whatever its plan says. So the order of a tape makes a swap fast, and its absence does not make it wrong.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "rouse/base/status.h"

namespace rouse::transfer {

using Deadline = std::chrono::steady_clock::time_point;

inline constexpr uint64_t kBlockBytes = 16 << 10;

// Bytes of a model, counted from the start of its range.
struct Extent {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool operator==(const Extent&) const = default;
};

// The arrival of one model. Thread-safe: one copier publishes, any number of threads wait.
class Residency {
 public:
  // Demands that are remembered at once; what is asked for beyond them arrives in the plan's order.
  static constexpr size_t kMaxDemands = 1024;

  // Nothing has arrived yet. `address` and `bytes` are the model's range; bytes is above 0.
  Residency(uint64_t address, uint64_t bytes);
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

  // Returns once [address, address + bytes) has arrived: one load and one comparison where all of the model has.
  // kInvalid: not inside the range. kDeadline, kCancelled, or what the copy failed with.
  Status wait_ready(uint64_t address, uint64_t bytes, Deadline deadline) {
    if (phase_.load(std::memory_order_acquire) == Phase::kReady && contains(address, bytes)) [[likely]] {
      return {};
    }
    return wait_slow(address, bytes, deadline);
  }

  // Returns once the rows of a table have arrived that a gather reads, whatever else of the table has not.
  // `table` is the address of row 0 and `rows` are row numbers; those that lie outside of the range are kInvalid.
  Status wait_rows(uint64_t table, uint64_t row_bytes, std::span<const int64_t> rows, Deadline deadline);

  // Whether the bytes are there, without waiting or demanding. False for what is outside the range.
  bool is_ready(uint64_t address, uint64_t bytes) const;
  bool all_ready() const { return phase_.load(std::memory_order_acquire) == Phase::kReady; }
  // Why nothing more will come; ok while more does, or all is there.
  Status failure() const;

  // For the copier: the blocks that lie wholly in [offset, offset + bytes) are there; a range's last block may be
  // short.
  void publish(uint64_t offset, uint64_t bytes);
  // For the copier: everything is there.
  void finish();
  // For the copier: nothing more will come, and this is why. Waiters for what is missing get it.
  void fail(Status why);
  // For the copier: the next bytes that somebody waits for, on block boundaries and not there yet; at most `limit`.
  std::optional<Extent> next_demand(uint64_t limit);
  // For the copier: the first part of `extent`, on block boundaries, that is not there yet, at most `limit` bytes (but
  // a block); nullopt where all is.
  std::optional<Extent> first_missing(Extent extent, uint64_t limit = ~uint64_t{0}) const;

  // How often an operation had to wait, and for how long together.
  uint64_t waits() const { return waits_.load(std::memory_order_relaxed); }
  std::chrono::nanoseconds waited() const {
    return std::chrono::nanoseconds(waited_ns_.load(std::memory_order_relaxed));
  }

 private:
  enum class Phase : uint32_t { kLoading, kReady, kFailed };

  bool contains(uint64_t address, uint64_t bytes) const {
    return address >= address_ && bytes <= bytes_ && address - address_ <= bytes_ - bytes;
  }
  bool blocks_ready(uint64_t first, uint64_t last) const;
  bool block_ready(uint64_t block) const;
  Status wait_slow(uint64_t address, uint64_t bytes, Deadline deadline);
  // Waits until `ready()` or failure; `demand` is called once before the first wait.
  template <typename Ready, typename Demand>
  Status wait_until_ready(Ready ready, Demand demand, Deadline deadline);
  Status outside(uint64_t address, uint64_t bytes) const;
  void demand(Extent extent);
  void wake();

  const uint64_t address_;
  const uint64_t bytes_;
  const uint64_t blocks_;
  std::unique_ptr<std::atomic<uint64_t>[]> bits_;
  std::atomic<Phase> phase_{Phase::kLoading};
  std::atomic<uint32_t> epoch_{0};  // counts arrivals; waiters sleep on it
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint64_t> waits_{0};
  std::atomic<uint64_t> waited_ns_{0};
  std::atomic<uint32_t> demanded_{0};  // demands_.size(), read without the lock

  mutable std::mutex lock_;
  std::vector<Extent> demands_;
  Status failure_;
};

}  // namespace rouse::transfer
