// Waiting on a word in memory that processes share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace rouse::ring {

// Sleeps while `word` is `expected`, until `deadline` or a wake; also wakes for no reason.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::steady_clock::time_point deadline);
void futex_wake(std::atomic<std::uint32_t>& word);

}  // namespace rouse::ring
