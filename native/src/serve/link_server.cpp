#include "rouse/serve/link_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "rouse/serve/link_connection.h"
#include "rouse/serve/log.h"

namespace rouse::serve {

namespace {

constexpr auto kHelloTimeout = std::chrono::seconds(5);
constexpr double kBusyRetryS = 0.1;
// Of one connection in one turn of the loop, so that no peer holds up the others.
constexpr int kReadsAtOnce = 16;

}  // namespace

Result<Fd> listen_unix(const std::string& path, int backlog) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path[0] != '/' || path.size() >= sizeof(address.sun_path)) {
    return Status(Code::kInvalid, "a socket's path must be absolute and shorter than " +
                                      std::to_string(sizeof(address.sun_path)) + " bytes: '" + path + "'");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Status(Code::kFailed, std::string("socket failed: ") + std::strerror(errno));
  struct stat found{};
  // Only what is a socket is in the way by right; anything else was not ours.
  if (::lstat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode)) ::unlink(path.c_str());
  const mode_t before = ::umask(0177);
  const int bound = ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  ::umask(before);
  if (bound != 0 || ::listen(fd.get(), backlog) != 0) {
    return Status(Code::kFailed, "cannot listen at " + path + ": " + std::strerror(errno));
  }
  return fd;
}

bool peer_is(int fd, uid_t user) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return false;
  return credentials.uid == user || credentials.uid == ::geteuid() || credentials.uid == 0;
}

// ---- Calls ------------------------------------------------------------------------------------

bool LinkCall::end() { return !ended_.exchange(true, std::memory_order_acq_rel); }

void LinkCall::reply(std::string_view body) {
  if (!end()) return;
  if (body.size() > server_.limits_.max_message_bytes) {
    connection_->send(FrameKind::kError, number_,
                      encode({RpcCode::kInternal, "MESSAGE_TOO_LARGE",
                              "an answer of " + std::to_string(body.size()) + " bytes; a link carries " +
                                  std::to_string(server_.limits_.max_message_bytes) + " at most"}));
  } else {
    connection_->send(FrameKind::kLast, number_, body);
  }
  server_.forget(*this);
}

void LinkCall::fail(const RpcError& error) {
  if (!end()) return;
  connection_->send(FrameKind::kError, number_, encode(error));
  server_.forget(*this);
}

// ---- Server -----------------------------------------------------------------------------------

LinkServer::~LinkServer() {
  for (const auto& [id, connection] : connections_) {
    loop_.unwatch(connection->fd());
    connection->shut();
  }
  if (listener_.valid()) {
    loop_.unwatch(listener_.get());
    ::unlink(path_.c_str());
  }
}

size_t LinkServer::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_.size();
}

Status LinkServer::listen(const std::string& path) {
  Result<Fd> listener = listen_unix(path, 64);
  if (!listener.ok()) return listener.status();
  listener_ = std::move(listener).value();
  path_ = path;
  return loop_.watch(listener_.get(), EPOLLIN, [this](uint32_t) { accept(); });
}

void LinkServer::accept() {
  Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) return;
  if (connections_.size() >= limits_.max_connections || !peer_is(fd.get(), ::geteuid())) {
    log_warning("a link is refused: " + std::to_string(connections_.size()) + " connections are open, or not our user");
    return;
  }
  const uint64_t id = next_id_++;
  // Twice the largest message: one that is being sent, and one behind it.
  auto connection = std::make_shared<LinkConnection>(loop_, id, std::move(fd), limits_.max_message_bytes,
                                                     2 * limits_.max_message_bytes + (1 << 20));
  const Status watched = loop_.watch(connection->fd(), EPOLLIN | EPOLLRDHUP,
                                     [this, connection](uint32_t events) { on_events(connection, events); });
  if (!watched.ok()) {
    log_warning("a link is refused: " + watched.describe());
    return;
  }
  connections_[id] = connection;
  connection->send(FrameKind::kHello, 0, kLinkMagic);
  loop_.at(Clock::now() + kHelloTimeout, [this, id] {
    const auto found = connections_.find(id);
    if (found != connections_.end() && !found->second->greeted)
      close(std::shared_ptr(found->second), "the peer said no hello");
  });
}

void LinkServer::on_events(const std::shared_ptr<LinkConnection>& connection, uint32_t events) {
  if ((events & EPOLLOUT) != 0 && !connection->flush())
    return close(connection, "the peer hung up or stopped reading its answers");
  if (connection->broken()) return close(connection, "the peer hung up or stopped reading its answers");
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLRDHUP | EPOLLERR)) == 0) return;
  for (int reads = 0; reads < kReadsAtOnce; ++reads) {
    const std::span<std::byte> space = connection->reader().space();
    const ssize_t count = ::recv(connection->fd(), space.data(), space.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (count <= 0) return close(connection, "");
    connection->reader().received(static_cast<size_t>(count));
    while (true) {
      Result<std::optional<Frame>> frame = connection->reader().next();
      if (!frame.ok()) return close(connection, frame.status().text());
      if (!frame.value()) break;
      const Status handled = on_frame(connection, *frame.value());
      if (!handled.ok()) return close(connection, handled.text());
    }
    if (static_cast<size_t>(count) < space.size()) return;
  }
}

Status LinkServer::on_frame(const std::shared_ptr<LinkConnection>& connection, const Frame& frame) {
  if (!connection->greeted) {
    if (frame.kind != FrameKind::kHello || as_text(frame.body) != kLinkMagic) {
      return Status(Code::kInvalid, "the first frame is no hello of this version");
    }
    connection->greeted = true;
    return {};
  }
  if (frame.kind == FrameKind::kCall) return begin(connection, frame);
  // A call has one response, so the credit for further ones is read and not needed.
  if (frame.kind == FrameKind::kCredit && frame.body.size() == sizeof(uint32_t)) return {};
  if (frame.kind != FrameKind::kCancel) {
    return Status(Code::kInvalid, "a client sends no frame of kind " + std::to_string(static_cast<int>(frame.kind)));
  }
  std::shared_ptr<LinkCall> call;
  {
    const std::lock_guard lock(mutex_);
    const auto found = calls_.find({connection->id(), frame.call});
    if (found != calls_.end()) call = found->second;  // Else it has ended meanwhile.
  }
  if (call && call->end()) forget(*call);
  return {};
}

Status LinkServer::begin(const std::shared_ptr<LinkConnection>& connection, const Frame& frame) {
  Result<CallHead> head = read_call_head(frame.head);
  if (!head.ok()) return head.status();
  const auto handler = handlers_.find(head.value().method);
  const Clock::time_point deadline = Clock::now() + head.value().timeout;
  auto call = std::make_shared<LinkCall>(*this, connection, frame.call, deadline);
  std::optional<RpcError> refusal;
  if (handler == handlers_.end()) {
    refusal = RpcError{RpcCode::kInternal, "UNKNOWN_METHOD", head.value().method + " is not served over this link"};
  } else if (draining_) {
    refusal = RpcError{RpcCode::kUnavailable, "NOT_CONNECTED", "the executor stops", {}, kBusyRetryS};
  }
  {
    const std::lock_guard lock(mutex_);
    const CallKey key{connection->id(), frame.call};
    if (calls_.contains(key)) {
      return Status(Code::kInvalid, "call " + std::to_string(frame.call) + " is under way already");
    }
    if (!refusal && calls_.size() >= limits_.max_calls) {
      refusal = RpcError{RpcCode::kResourceExhausted,
                         "TOO_MANY_CALLS",
                         std::to_string(limits_.max_calls) + " calls are being served",
                         {},
                         kBusyRetryS};
    }
    if (!refusal) {
      calls_[key] = call;
      deadlines_.emplace(deadline, key);
    }
  }
  if (refusal) {
    connection->send(FrameKind::kError, frame.call, encode(*refusal));
    return {};
  }
  arm(deadline);
  handler->second(std::move(call), frame.body);
  return {};
}

void LinkServer::close(const std::shared_ptr<LinkConnection>& connection, const std::string& why) {
  if (connections_.erase(connection->id()) == 0) return;
  if (!why.empty()) log_warning("a link is closed: " + why);
  loop_.unwatch(connection->fd());
  connection->shut();
  std::vector<std::shared_ptr<LinkCall>> given_up;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = calls_.lower_bound({connection->id(), 0}); at != calls_.end() && at->first.first == connection->id();
         ++at) {
      given_up.push_back(at->second);
    }
  }
  for (const auto& call : given_up) {
    if (call->end()) forget(*call);
  }
}

void LinkServer::forget(const LinkCall& call) {
  const CallKey key{call.connection_->id(), call.number_};
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    deadlines_.erase({call.deadline_, key});
    calls_.erase(key);
    last = calls_.empty();
  }
  if (last && draining_.load()) loop_.post([this] { tell_drained(); });
}

// ---- Deadlines and the end --------------------------------------------------------------------

void LinkServer::arm(Clock::time_point deadline) {
  if (deadline >= timer_at_) return;
  loop_.cancel(timer_);
  timer_at_ = deadline;
  timer_ = loop_.at(deadline, [this] { expire(); });
}

void LinkServer::expire() {
  timer_at_ = Clock::time_point::max();
  std::vector<std::shared_ptr<LinkCall>> late;
  {
    const std::lock_guard lock(mutex_);
    const Clock::time_point now = Clock::now();
    for (auto at = deadlines_.begin(); at != deadlines_.end() && at->first <= now; ++at) {
      late.push_back(calls_.at(at->second));
    }
  }
  for (const auto& call : late) {
    call->fail({RpcCode::kDeadlineExceeded, "DEADLINE_EXCEEDED", "the executor ran out of time"});
  }
  Clock::time_point next = Clock::time_point::max();
  {
    const std::lock_guard lock(mutex_);
    if (!deadlines_.empty()) next = deadlines_.begin()->first;
  }
  arm(next);
}

void LinkServer::drain(std::function<void()> drained) {
  drained_ = std::move(drained);
  draining_ = true;
  if (listener_.valid()) {
    loop_.unwatch(listener_.get());
    listener_.reset();
    ::unlink(path_.c_str());
  }
  for (const auto& [id, connection] : connections_) connection->send(FrameKind::kClosing, 0, {});
  if (calls() == 0) tell_drained();
}

void LinkServer::tell_drained() {
  if (drained_) std::exchange(drained_, nullptr)();
}

}  // namespace rouse::serve
