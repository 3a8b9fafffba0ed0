// Producing into and consuming from one ring.
#include "rouse/ring/ring.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "futex.h"
#include "memory.h"

namespace rouse::ring {
namespace {

bool is_dead(const Memory& memory) { return memory.layout->head.dead.load(std::memory_order_acquire) != 0; }

Status peer_gone() { return {Code::kPeerGone, "rings: the process on the other side has ended"}; }

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Result<std::byte*> Producer::reserve(std::size_t bytes, Clock::time_point deadline) {
  if (bytes == 0 || bytes % 8 != 0 || bytes > max_message()) {
    return Status(Code::kInvalid, "rings: a message of " + std::to_string(bytes) + " bytes; multiples of 8 up to " +
                                      std::to_string(max_message()) + " fit");
  }
  if (written_ + bytes - tail_ > bytes_) {
    tail_ = control_->tail.load(std::memory_order_acquire);
    if (tail_ > written_ || written_ - tail_ > bytes_) {
      return Status(Code::kInvalid, "rings: the other side says that it read what was never written");
    }
    if (written_ + bytes - tail_ > bytes_) ROUSE_RETURN_IF_ERROR(wait_room(bytes, deadline));
  }
  return data_ + (written_ & (bytes_ - 1));
}

void Producer::flush() {
  if (published_ == written_) return;
  published_ = written_;
  // Sequentially consistent with the consumer's announcement that it sleeps: one of the two sees the other.
  control_->head.store(written_, std::memory_order_seq_cst);
  if (control_->consumer_sleeps.load(std::memory_order_seq_cst) != 0) {
    // Taken back here, so that one sleep costs one wake, however much is flushed until the consumer runs.
    control_->consumer_sleeps.store(0, std::memory_order_seq_cst);
    control_->bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(control_->bell);
  }
}

Status Producer::wait_room(std::size_t bytes, Clock::time_point deadline) {
  flush();
  while (true) {
    const std::uint32_t before = control_->room.load(std::memory_order_seq_cst);
    control_->producer_sleeps.store(1, std::memory_order_seq_cst);
    tail_ = control_->tail.load(std::memory_order_seq_cst);
    const bool sane = tail_ <= written_ && written_ - tail_ <= bytes_;
    const bool fits = sane && written_ + bytes - tail_ <= bytes_;
    if (fits || !sane || is_dead(*memory_) || Clock::now() >= deadline) {
      control_->producer_sleeps.store(0, std::memory_order_relaxed);
      if (fits) return {};
      if (!sane) return {Code::kInvalid, "rings: the other side says that it read what was never written"};
      if (is_dead(*memory_)) return peer_gone();
      return {Code::kDeadline, "rings: no room in time, the other side does not read"};
    }
    futex_wait(control_->room, before, deadline);
  }
}

Status Consumer::refresh() {
  head_ = control_->head.load(std::memory_order_seq_cst);
  if (head_ < read_ || head_ - read_ > bytes_) {
    return {Code::kInvalid, "rings: the other side says that it wrote more than fits"};
  }
  return {};
}

Result<std::span<const std::byte>> Consumer::next(Clock::time_point deadline) {
  if (head_ == read_) {
    ROUSE_RETURN_IF_ERROR(refresh());
    if (head_ == read_) {
      auto waited = wait_data(deadline);
      if (waited.code() == Code::kDeadline) return std::span<const std::byte>();
      if (!waited.ok()) return waited;
    }
  }
  const std::byte* at = data_ + (read_ & (bytes_ - 1));
  std::uint32_t size;
  std::memcpy(&size, at, sizeof(size));
  if (size < 8 || size % 8 != 0 || size > bytes_ / 4 || size > head_ - read_) {
    return Status(Code::kInvalid, "rings: a message that says it has " + std::to_string(size) + " bytes where " +
                                      std::to_string(head_ - read_) + " were written");
  }
  current_ = size;
  return std::span<const std::byte>(at, size);
}

void Consumer::release() {
  read_ += current_;
  current_ = 0;
  control_->tail.store(read_, std::memory_order_seq_cst);
  if (control_->producer_sleeps.load(std::memory_order_seq_cst) != 0) {
    control_->producer_sleeps.store(0, std::memory_order_seq_cst);
    control_->room.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(control_->room);
  }
}

Status Consumer::wait_data(Clock::time_point deadline) {
  // Polling for a moment first: a wake costs the producer a system call, and most gaps are shorter than that.
  const auto poll_until = std::min(deadline, Clock::now() + spin_);
  while (spin_.count() > 0) {
    for (int turn = 0; turn < 64; ++turn) {
      if (control_->head.load(std::memory_order_acquire) != read_) return refresh();
      relax();
    }
    if (is_dead(*memory_) || Clock::now() >= poll_until) break;
  }
  while (true) {
    const std::uint32_t before = control_->bell.load(std::memory_order_seq_cst);
    control_->consumer_sleeps.store(1, std::memory_order_seq_cst);
    auto status = refresh();
    if (!status.ok() || head_ != read_ || is_dead(*memory_) || Clock::now() >= deadline) {
      control_->consumer_sleeps.store(0, std::memory_order_relaxed);
      if (!status.ok() || head_ != read_) return status;
      if (is_dead(*memory_)) return peer_gone();
      return {Code::kDeadline, "rings: nothing came in time"};
    }
    futex_wait(control_->bell, before, deadline);
  }
}

}  // namespace rouse::ring
