// A thread with a bounded queue: work that may block and must not hold up the loop.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace rouse::serve {

class Worker {
 public:
  explicit Worker(size_t max_waiting) : max_waiting_(max_waiting), thread_([this] { run(); }) {}
  // Waits for what runs; what still waits is dropped.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // False where as much waits as may.
  bool submit(std::function<void()> task);

 private:
  void run();

  const size_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace rouse::serve
