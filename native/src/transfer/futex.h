// Sleeping on a word of this process's memory, with a deadline: std::atomic::wait has none.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace rouse::transfer {

// Returns when woken, when the word is not `expected`, at the deadline, or for no reason: look again.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::steady_clock::time_point deadline) {
  // steady_clock is CLOCK_MONOTONIC here, which FUTEX_WAIT_BITSET takes as an absolute time.
  const auto since = deadline.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
  timespec until{};
  if (seconds.count() >= 0) {
    until.tv_sec = static_cast<time_t>(seconds.count());
    until.tv_nsec = static_cast<long>(std::chrono::nanoseconds(since - seconds).count());
  }
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, expected, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace rouse::transfer
