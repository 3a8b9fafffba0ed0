#include "rouse/serve/loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace rouse::serve {

namespace {

constexpr uint64_t kWakeId = 0;
constexpr int kEventsAtOnce = 64;

Status failed(const char* what) {
  return Status(Code::kFailed, std::string(what) + " failed: " + std::strerror(errno));
}

}  // namespace

Result<std::unique_ptr<EventLoop>> EventLoop::create() {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return failed("epoll_create1");
  Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return failed("eventfd");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeId;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) return failed("epoll_ctl");
  return std::unique_ptr<EventLoop>(new EventLoop(std::move(epoll), std::move(wake)));
}

Status EventLoop::watch(int fd, uint32_t events, OnEvents on_events) {
  const uint64_t id = next_id_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return failed("epoll_ctl");
  watches_[fd] = Watch{id, std::make_shared<OnEvents>(std::move(on_events))};
  fds_[id] = fd;
  return {};
}

void EventLoop::change(int fd, uint32_t events) {
  const auto found = watches_.find(fd);
  if (found == watches_.end()) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = found->second.id;
  // Cannot fail for a descriptor that is watched.
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::unwatch(int fd) {
  const auto found = watches_.find(fd);
  if (found == watches_.end()) return;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  fds_.erase(found->second.id);
  watches_.erase(found);
}

uint64_t EventLoop::at(Clock::time_point when, Task task) {
  const uint64_t id = next_id_++;
  timer_ids_[id] = timers_.emplace(when, std::pair(id, std::move(task)));
  return id;
}

void EventLoop::cancel(uint64_t timer) {
  const auto found = timer_ids_.find(timer);
  if (found == timer_ids_.end()) return;
  timers_.erase(found->second);
  timer_ids_.erase(found);
}

void EventLoop::post(Task task) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = posted_.empty();
    posted_.push_back(std::move(task));
  }
  const uint64_t one = 1;
  // EAGAIN means that the counter is full: the loop is woken already.
  if (first) (void)!::write(wake_.get(), &one, sizeof(one));
}

void EventLoop::stop() {
  post([this] { running_ = false; });
}

void EventLoop::run_posted() {
  uint64_t count = 0;
  (void)!::read(wake_.get(), &count, sizeof(count));
  std::vector<Task> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(posted_);
  }
  for (Task& task : tasks) task();
}

// Runs what is due; milliseconds until the next is, -1 where there is none.
int EventLoop::run_timers() {
  // Only what is due now: a task may set a timer for now again.
  const Clock::time_point now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    auto [id, task] = std::move(timers_.begin()->second);
    timer_ids_.erase(id);
    timers_.erase(timers_.begin());
    task();
  }
  if (timers_.empty()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

void EventLoop::run() {
  std::array<epoll_event, kEventsAtOnce> events;
  while (running_) {
    const int timeout_ms = run_timers();
    if (!running_) return;
    const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsAtOnce, timeout_ms);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kWakeId) {
        run_posted();
        continue;
      }
      const auto fd = fds_.find(events[i].data.u64);
      if (fd == fds_.end()) continue;
      // Kept alive: it may unwatch itself.
      const std::shared_ptr<OnEvents> on_events = watches_.at(fd->second).on_events;
      (*on_events)(events[i].events);
    }
  }
}

}  // namespace rouse::serve
