// One instance's right to compute on the device: its socket, its rings, and the thread that handles its messages.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "rouse/base/fd.h"
#include "rouse/ring/ring.h"
#include "rouse/serve/backend.h"
#include "rouse/serve/loop.h"
#include "rouse/serve/turns.h"

namespace rouse::serve {

struct SessionOptions {
  SessionSpec spec;
  std::string socket_path;
  size_t ring_bytes = 0;
  std::chrono::milliseconds connect_timeout{0};
  uid_t peer = 0;  // User that may connect, beside our own.
};

struct SessionInfo {
  std::string session_id;
  std::string version_id;
  bool connected = false;
  uint32_t peer_pid = 0;
  uint64_t turns = 0;
  uint64_t scratch_bytes = 0;
  double device_ms = 0;
  uint64_t ring_bytes = 0;
  uint64_t most_bytes = 0;
};

// LISTENING → RUNNING → ENDED. Lives on the loop's thread; its messages are handled on a thread of its own, so that a
// session's thread-local settings are nobody else's, and that it sleeps on its own doorbell.
class Session : public std::enable_shared_from_this<Session> {
 public:
  // `on_ended` is called once, on the loop's thread, when the session's thread and descriptors are gone.
  static Result<std::shared_ptr<Session>> open(EventLoop& loop, Turns& turns, Backend& backend, SessionOptions options,
                                               std::function<void(const std::string& why)> on_ended);
  ~Session();

  // Ends it: the peer sees the connection close. What computes for it now ends first.
  void end(const std::string& why);
  SessionInfo info() const;
  // What its thread works with; null before and after. In a turn only.
  SessionWork* work() { return work_; }
  const SessionOptions& options() const { return options_; }

 private:
  Session(EventLoop& loop, Turns& turns, Backend& backend, SessionOptions options);
  void on_listener();
  bool greet(int fd);
  void run();
  Result<std::unique_ptr<SessionWork>> open_work();
  Status work(SessionWork& work);
  void finish();

  EventLoop& loop_;
  Turns& turns_;
  Backend& backend_;
  SessionOptions options_;
  std::function<void(const std::string&)> on_ended_;
  std::unique_ptr<ring::Channel> channel_;
  Fd listener_;
  Fd peer_;
  uint32_t peer_pid_ = 0;
  uint64_t timer_ = 0;
  bool ending_ = false;
  std::string why_;
  std::thread thread_;
  SessionWork* work_ = nullptr;

  // Written by the session's thread.
  std::atomic<uint64_t> turns_taken_{0};
  std::atomic<uint64_t> scratch_bytes_{0};
  std::atomic<uint64_t> most_bytes_{0};
  std::atomic<uint64_t> device_ns_{0};
};

}  // namespace rouse::serve
