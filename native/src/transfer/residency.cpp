#include "rouse/transfer/residency.h"

#include <algorithm>
#include <bit>

#include "futex.h"
#include "rouse/base/text.h"

namespace rouse::transfer {

namespace {

constexpr uint64_t kBits = 64;

// Bits first … last of one word.
uint64_t mask(uint64_t first, uint64_t last) { return (~uint64_t{0} << first) & (~uint64_t{0} >> (kBits - 1 - last)); }

// Calls `each(word, mask)` for the words that hold blocks first … last, until it returns false.
template <typename Each>
bool words(uint64_t first, uint64_t last, Each each) {
  for (uint64_t word = first / kBits; word <= last / kBits; ++word) {
    const uint64_t low = word == first / kBits ? first % kBits : 0;
    const uint64_t high = word == last / kBits ? last % kBits : kBits - 1;
    if (!each(word, mask(low, high))) return false;
  }
  return true;
}

}  // namespace

Residency::Residency(uint64_t address, uint64_t bytes)
    : address_(address),
      bytes_(bytes),
      blocks_((bytes + kBlockBytes - 1) / kBlockBytes),
      bits_(new std::atomic<uint64_t>[(blocks_ + kBits - 1) / kBits]()) {}

bool Residency::blocks_ready(uint64_t first, uint64_t last) const {
  return words(first, last, [&](uint64_t word, uint64_t wanted) {
    return (bits_[word].load(std::memory_order_acquire) & wanted) == wanted;
  });
}

bool Residency::block_ready(uint64_t block) const {
  return bits_[block / kBits].load(std::memory_order_acquire) >> (block % kBits) & 1;
}

bool Residency::is_ready(uint64_t address, uint64_t bytes) const {
  if (!contains(address, bytes)) return false;
  if (all_ready() || bytes == 0) return true;
  const uint64_t offset = address - address_;
  return blocks_ready(offset / kBlockBytes, (offset + bytes - 1) / kBlockBytes);
}

Status Residency::outside(uint64_t address, uint64_t bytes) const {
  return Status(Code::kInvalid,
                text(bytes, " B at ", Hex{address}, " are not inside the model's ", bytes_, " B at ", Hex{address_}));
}

template <typename Ready, typename Demand>
Status Residency::wait_until_ready(Ready ready, Demand demand, Deadline deadline) {
  if (ready()) return {};
  demand();
  const auto started = std::chrono::steady_clock::now();
  waits_.fetch_add(1, std::memory_order_relaxed);
  // Announced before the bits are looked at again: whoever sets them afterwards sees that somebody sleeps.
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  Status result;
  while (true) {
    const uint32_t epoch = epoch_.load(std::memory_order_seq_cst);
    if (ready()) break;
    if (phase_.load(std::memory_order_acquire) == Phase::kFailed) {
      std::lock_guard guard(lock_);
      result = failure_;
      break;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      result = Status(Code::kDeadline, text("the model at ", Hex{address_},
                                            " has not arrived in time where an operation "
                                            "reads it; the link is slower than the deadline allows"));
      break;
    }
    futex_wait(epoch_, epoch, deadline);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  const auto took = std::chrono::steady_clock::now() - started;
  waited_ns_.fetch_add(static_cast<uint64_t>(std::chrono::nanoseconds(took).count()), std::memory_order_relaxed);
  return result;
}

Status Residency::wait_slow(uint64_t address, uint64_t bytes, Deadline deadline) {
  if (!contains(address, bytes)) return outside(address, bytes);
  if (bytes == 0) return {};
  return wait_until_ready([&] { return is_ready(address, bytes); }, [&] { demand({address - address_, bytes}); },
                          deadline);
}

Status Residency::wait_rows(uint64_t table, uint64_t row_bytes, std::span<const int64_t> rows, Deadline deadline) {
  if (row_bytes == 0 || table < address_ || !contains(table, 0)) return outside(table, row_bytes);
  const uint64_t room = (bytes_ - (table - address_)) / row_bytes;
  for (const int64_t row : rows) {
    if (row < 0 || static_cast<uint64_t>(row) >= room) {
      return Status(Code::kInvalid, text("row ", row, " of a table at ", Hex{table}, " with ", row_bytes,
                                         " B a row is not inside the model"));
    }
  }
  const auto at = [&](int64_t row) { return table + static_cast<uint64_t>(row) * row_bytes; };
  const auto ready = [&] {
    return all_ready() ||
           std::all_of(rows.begin(), rows.end(), [&](int64_t row) { return is_ready(at(row), row_bytes); });
  };
  const auto ask = [&] {
    for (const int64_t row : rows) {
      if (!is_ready(at(row), row_bytes)) demand({at(row) - address_, row_bytes});
    }
  };
  return wait_until_ready(ready, ask, deadline);
}

void Residency::demand(Extent extent) {
  std::lock_guard guard(lock_);
  if (demands_.size() >= kMaxDemands) return;
  demands_.push_back(extent);
  demanded_.store(static_cast<uint32_t>(demands_.size()), std::memory_order_release);
}

std::optional<Extent> Residency::first_missing(Extent extent, uint64_t limit) const {
  if (all_ready() || extent.bytes == 0 || extent.offset >= bytes_) return std::nullopt;
  const uint64_t end = std::min(bytes_, extent.offset + std::min(extent.bytes, bytes_));
  const uint64_t last = (end - 1) / kBlockBytes;
  uint64_t first = extent.offset / kBlockBytes;
  while (first <= last && block_ready(first)) {
    // Whole words of what is there are passed at once: tables are gigabytes.
    const bool whole = first % kBits == 0 && bits_[first / kBits].load(std::memory_order_acquire) == ~uint64_t{0};
    first += whole ? kBits : 1;
  }
  if (first > last) return std::nullopt;
  const uint64_t most = std::max(limit / kBlockBytes, uint64_t{1});
  uint64_t until = first + 1;
  while (until <= last && until - first < most && !block_ready(until)) ++until;
  return Extent{first * kBlockBytes, std::min(until * kBlockBytes, bytes_) - first * kBlockBytes};
}

std::optional<Extent> Residency::next_demand(uint64_t limit) {
  if (demanded_.load(std::memory_order_acquire) == 0) return std::nullopt;
  std::lock_guard guard(lock_);
  while (!demands_.empty()) {
    if (auto missing = first_missing(demands_.front(), limit)) return missing;
    demands_.erase(demands_.begin());
    demanded_.store(static_cast<uint32_t>(demands_.size()), std::memory_order_release);
  }
  return std::nullopt;
}

void Residency::publish(uint64_t offset, uint64_t bytes) {
  const uint64_t first = (offset + kBlockBytes - 1) / kBlockBytes;
  const uint64_t end = offset + bytes >= bytes_ ? blocks_ : (offset + bytes) / kBlockBytes;
  if (first < end) {
    words(first, end - 1, [&](uint64_t word, uint64_t arrived) {
      bits_[word].fetch_or(arrived, std::memory_order_release);
      return true;
    });
  }
  wake();
}

void Residency::finish() {
  phase_.store(Phase::kReady, std::memory_order_release);
  wake();
}

void Residency::fail(Status why) {
  {
    std::lock_guard guard(lock_);
    failure_ = std::move(why);
  }
  phase_.store(Phase::kFailed, std::memory_order_release);
  wake();
}

Status Residency::failure() const {
  if (phase_.load(std::memory_order_acquire) != Phase::kFailed) return {};
  std::lock_guard guard(lock_);
  return failure_;
}

void Residency::wake() {
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake_all(epoch_);
}

}  // namespace rouse::transfer
