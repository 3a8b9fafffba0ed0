// Whose turn it is to compute on the device: one at a time, first come first served.
//
// A turn ends when its holder has nothing to do, or after the quantum, at the next message. Leases
// decide on the node whose requests come here at all; turns only keep one session from starving the others.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace rouse::serve {

class Turns {
 public:
  explicit Turns(std::chrono::microseconds quantum) : quantum_(quantum) {}

  // One turn, as a lock; measures how long the device worked.
  class Turn {
   public:
    explicit Turn(Turns& turns) : turns_(turns) {
      turns_.take();
      start_ = std::chrono::steady_clock::now();
    }
    ~Turn() { turns_.give(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    std::chrono::nanoseconds elapsed() const { return std::chrono::steady_clock::now() - start_; }
    // When it has to end if others wait. Who goes on alone takes the next turn at once.
    std::chrono::steady_clock::time_point end() const { return start_ + turns_.quantum_; }

   private:
    Turns& turns_;
    std::chrono::steady_clock::time_point start_;
  };

 private:
  void take() {
    std::unique_lock lock(mutex_);
    const uint64_t mine = next_++;
    changed_.wait(lock, [&] { return serving_ == mine; });
  }
  void give() {
    {
      const std::lock_guard lock(mutex_);
      ++serving_;
      if (serving_ == next_) return;
    }
    changed_.notify_all();
  }
  const std::chrono::microseconds quantum_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ = 0;
  uint64_t serving_ = 0;
};

}  // namespace rouse::serve
