// The serving end of links (docs/decisions/0005; rouse_common.link.server is the same in Python), over a Unix socket.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rouse/serve/frames.h"
#include "rouse/serve/loop.h"
#include "rouse/serve/rpc_error.h"

namespace rouse::serve {

class LinkConnection;
class LinkServer;

// One call that is served. Whoever answers first ends it; everything after that is dropped.
class LinkCall {
 public:
  LinkCall(LinkServer& server, std::shared_ptr<LinkConnection> connection, uint64_t number, Clock::time_point deadline)
      : server_(server), connection_(std::move(connection)), number_(number), deadline_(deadline) {}

  // True once it is answered, given up by its caller, or past its deadline: work for it is wasted.
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  Clock::time_point deadline() const { return deadline_; }

  // From any thread, while the server is there.
  void reply(std::string_view body);
  void fail(const RpcError& error);

 private:
  friend class LinkServer;
  bool end();

  LinkServer& server_;
  std::shared_ptr<LinkConnection> connection_;
  uint64_t number_;
  Clock::time_point deadline_;
  std::atomic<bool> ended_{false};
};

struct LinkLimits {
  size_t max_message_bytes = 64 << 20;
  size_t max_connections = 64;
  // Calls that are served at once; further ones get RESOURCE_EXHAUSTED TOO_MANY_CALLS.
  size_t max_calls = 1024;
};

class LinkServer {
 public:
  // The request lies where it was received and is gone when the handler returns. A handler runs on the loop's thread,
  // must not block, and answers at once or later.
  using Handler = std::function<void(std::shared_ptr<LinkCall> call, Bytes request)>;

  LinkServer(EventLoop& loop, LinkLimits limits) : loop_(loop), limits_(limits) {}
  ~LinkServer();
  LinkServer(const LinkServer&) = delete;
  LinkServer& operator=(const LinkServer&) = delete;

  // `method`: "/package.Service/Method".
  void add(std::string method, Handler handler) { handlers_[std::move(method)] = std::move(handler); }
  // Listens at a path, which only this process's user may connect to. FAILED where the path cannot be used.
  Status listen(const std::string& path);
  // Accepts no more, tells callers, and refuses new calls; calls under way go on. `drained` is called once, on the
  // loop's thread, when the last has ended.
  void drain(std::function<void()> drained);

  size_t calls() const;
  size_t connections() const { return connections_.size(); }

 private:
  friend class LinkCall;
  friend class LinkConnection;
  using CallKey = std::pair<uint64_t, uint64_t>;  // Connection, call.

  void accept();
  void on_events(const std::shared_ptr<LinkConnection>& connection, uint32_t events);
  Status on_frame(const std::shared_ptr<LinkConnection>& connection, const Frame& frame);
  Status begin(const std::shared_ptr<LinkConnection>& connection, const Frame& frame);
  void close(const std::shared_ptr<LinkConnection>& connection, const std::string& why);
  void forget(const LinkCall& call);
  void expire();
  void arm(Clock::time_point deadline);
  void tell_drained();

  EventLoop& loop_;
  LinkLimits limits_;
  std::unordered_map<std::string, Handler> handlers_;
  std::string path_;
  Fd listener_;
  uint64_t next_id_ = 1;
  std::unordered_map<uint64_t, std::shared_ptr<LinkConnection>> connections_;
  uint64_t timer_ = 0;
  Clock::time_point timer_at_ = Clock::time_point::max();
  std::function<void()> drained_;
  std::atomic<bool> draining_{false};

  mutable std::mutex mutex_;
  std::map<CallKey, std::shared_ptr<LinkCall>> calls_;
  std::set<std::pair<Clock::time_point, CallKey>> deadlines_;
};

// Makes a listening Unix socket at `path` with mode 0600, in the place of one that was left behind.
Result<Fd> listen_unix(const std::string& path, int backlog);

// Whether the process at the other end of a Unix socket belongs to `user`, to us, or to root.
bool peer_is(int fd, uid_t user);

}  // namespace rouse::serve
