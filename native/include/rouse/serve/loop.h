// The executor's I/O thread: one epoll loop for links, sessions' sockets, signals and timers. It never computes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "rouse/base/fd.h"
#include "rouse/base/status.h"

namespace rouse::serve {

using Clock = std::chrono::steady_clock;

// All but `post` and `stop` is for the loop's own thread.
class EventLoop {
 public:
  using OnEvents = std::function<void(uint32_t events)>;
  using Task = std::function<void()>;

  static Result<std::unique_ptr<EventLoop>> create();

  // Calls `on_events` with epoll's events of `fd`, until `unwatch`. The descriptor stays its owner's.
  Status watch(int fd, uint32_t events, OnEvents on_events);
  void change(int fd, uint32_t events);
  void unwatch(int fd);

  // Calls `task` once at that time; the number cancels it.
  uint64_t at(Clock::time_point when, Task task);
  void cancel(uint64_t timer);

  // From any thread: has the loop's thread do it. What is posted is bounded by those who post: a few for each call and
  // session, which are bounded.
  void post(Task task);

  // Returns after `stop`.
  void run();
  void stop();

 private:
  struct Watch {
    uint64_t id;
    std::shared_ptr<OnEvents> on_events;
  };

  EventLoop(Fd epoll, Fd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}
  void run_posted();
  int run_timers();

  Fd epoll_;
  Fd wake_;
  uint64_t next_id_ = 1;
  // By descriptor; and descriptors by id, because an event may be for one that was closed and opened anew meanwhile.
  std::unordered_map<int, Watch> watches_;
  std::unordered_map<uint64_t, int> fds_;
  std::multimap<Clock::time_point, std::pair<uint64_t, Task>> timers_;
  std::unordered_map<uint64_t, decltype(timers_)::iterator> timer_ids_;
  bool running_ = true;

  std::mutex mutex_;
  std::vector<Task> posted_;
};

}  // namespace rouse::serve
