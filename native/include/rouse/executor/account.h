// What one user of the device holds of it beside the weights: how much at most, how much now, and the most that it was.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

namespace rouse::executor {

// What a caller can do where there is no room.
inline constexpr const char* kGiveMore =
    "declare more `working_memory_bytes` for the function, or give it smaller inputs";

// Memory that its holder can do without until it is needed again.
class Spare {
 public:
  virtual void trim() = 0;

 protected:
  ~Spare() = default;
};

// Counted where memory is asked of the kernel, and not where blocks are given out: a warm session pays nothing for it.
// Thread-safe, but for the spare.
class Account {
 public:
  static constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

  // `whole`: what it is a part of, as a session of a version; that has no limit of its own.
  explicit Account(std::uint64_t limit_bytes, std::shared_ptr<Account> whole = nullptr)
      : limit_(limit_bytes), whole_(std::move(whole)) {}

  // All of it or nothing.
  bool take(std::uint64_t bytes) {
    std::uint64_t held = held_.load(std::memory_order_relaxed);
    do {
      if (bytes > limit_ || held > limit_ - bytes) return false;
    } while (!held_.compare_exchange_weak(held, held + bytes, std::memory_order_relaxed));
    reached(held + bytes);
    if (whole_) (void)whole_->take(bytes);
    return true;
  }
  void give(std::uint64_t bytes) {
    held_.fetch_sub(bytes, std::memory_order_relaxed);
    if (whole_) whole_->give(bytes);
  }
  // It held so much at one time, as others have counted.
  void reached(std::uint64_t bytes) {
    std::uint64_t most = most_.load(std::memory_order_relaxed);
    while (most < bytes && !most_.compare_exchange_weak(most, bytes, std::memory_order_relaxed)) {
    }
  }

  std::uint64_t limit() const { return limit_; }
  std::uint64_t held() const { return held_.load(std::memory_order_relaxed); }
  std::uint64_t most() const { return most_.load(std::memory_order_relaxed); }

  // What is trimmed before a block is refused; null: nothing. Of the thread that allocates, in its turn on the device.
  void set_spare(Spare* spare) { spare_ = spare; }
  Spare* spare() const { return spare_; }

 private:
  const std::uint64_t limit_;
  const std::shared_ptr<Account> whole_;
  std::atomic<std::uint64_t> held_{0};
  std::atomic<std::uint64_t> most_{0};
  Spare* spare_ = nullptr;
};

}  // namespace rouse::executor
