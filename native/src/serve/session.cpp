#include "rouse/serve/session.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "rouse/serve/log.h"
#include "rouse/serve/session_protocol.h"

namespace rouse::serve {

namespace {

// How long a session's thread sleeps at most before it looks whether it was told to end. It is woken for that; this
// only bounds what a lost wake would cost.
constexpr auto kPatience = std::chrono::seconds(1);

}  // namespace

Session::Session(EventLoop& loop, Turns& turns, Backend& backend, SessionOptions options)
    : loop_(loop), turns_(turns), backend_(backend), options_(std::move(options)) {}

Session::~Session() {
  if (thread_.joinable()) {
    channel_->mark_dead();
    thread_.join();
  }
}

Result<std::shared_ptr<Session>> Session::open(EventLoop& loop, Turns& turns, Backend& backend, SessionOptions options,
                                               std::function<void(const std::string&)> on_ended) {
  std::shared_ptr<Session> session(new Session(loop, turns, backend, std::move(options)));
  Result<std::unique_ptr<ring::Channel>> channel =
      ring::Channel::create(ring::Side::kExecutor, session->options_.ring_bytes);
  if (!channel.ok()) return channel.status();
  session->channel_ = std::move(channel).value();
  Result<Fd> listener = listen_unix(session->options_.socket_path, 1);
  if (!listener.ok()) return listener.status();
  session->listener_ = std::move(listener).value();
  // Changing the owner needs a privilege; without it only our own user can connect, which the kernel then says.
  if (session->options_.peer != 0 && session->options_.peer != ::geteuid() &&
      ::chown(session->options_.socket_path.c_str(), session->options_.peer, static_cast<gid_t>(-1)) != 0) {
    ::unlink(session->options_.socket_path.c_str());
    return Status(Code::kRefused, "cannot give " + session->options_.socket_path + " to user " +
                                      std::to_string(session->options_.peer) + ": " + std::strerror(errno));
  }
  const Status watched =
      loop.watch(session->listener_.get(), EPOLLIN, [raw = session.get()](uint32_t) { raw->on_listener(); });
  if (!watched.ok()) return watched;
  session->on_ended_ = std::move(on_ended);
  session->timer_ = loop.at(Clock::now() + session->options_.connect_timeout,
                            [raw = session.get()] { raw->end("nobody connected in time"); });
  return session;
}

void Session::on_listener() {
  Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) return;
  if (!peer_is(fd.get(), options_.peer) || !greet(fd.get())) {
    log_warning("session " + options_.spec.session_id + ": a connection is refused");
    return;  // The right one may still come.
  }
  loop_.cancel(timer_);
  loop_.unwatch(listener_.get());
  listener_.reset();
  ::unlink(options_.socket_path.c_str());
  peer_ = std::move(fd);
  // It never sends anything: whatever happens there is its end.
  const Status watched = loop_.watch(peer_.get(), EPOLLIN | EPOLLRDHUP, [this](uint32_t events) {
    end((events & (EPOLLHUP | EPOLLRDHUP)) != 0 ? "its process has gone" : "its process wrote to the session's socket");
  });
  if (!watched.ok()) return end(watched.text());
  thread_ = std::thread([this] { run(); });
}

bool Session::greet(int fd) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0) {
    peer_pid_ = static_cast<uint32_t>(credentials.pid);
  }
  const SessionGreeting greeting{kSessionMagic, kSessionVersion, 0};
  iovec part{const_cast<SessionGreeting*>(&greeting), sizeof(greeting)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  const int rings = channel_->descriptor();
  std::memcpy(CMSG_DATA(head), &rings, sizeof(rings));
  return ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(sizeof(greeting));
}

void Session::end(const std::string& why) {
  if (ending_) return;
  ending_ = true;
  if (why_.empty()) why_ = why;
  loop_.cancel(timer_);
  if (listener_.valid()) {
    loop_.unwatch(listener_.get());
    listener_.reset();
    ::unlink(options_.socket_path.c_str());
  }
  if (peer_.valid()) {
    loop_.unwatch(peer_.get());
    peer_.reset();
  }
  channel_->mark_dead();
  // With a thread, it says itself when it has ended; see run().
  if (!thread_.joinable()) loop_.post([self = shared_from_this()] { self->finish(); });
}

void Session::finish() {
  if (thread_.joinable()) thread_.join();
  if (on_ended_) std::exchange(on_ended_, nullptr)(why_);
}

SessionInfo Session::info() const {
  return {options_.spec.session_id,
          options_.spec.version_id,
          peer_.valid(),
          peer_pid_,
          turns_taken_.load(std::memory_order_relaxed),
          scratch_bytes_.load(std::memory_order_relaxed),
          static_cast<double>(device_ns_.load(std::memory_order_relaxed)) / 1e6,
          2 * options_.ring_bytes,
          most_bytes_.load(std::memory_order_relaxed)};
}

// ---- The session's own thread -------------------------------------------------------------------

void Session::run() {
  Status ended;
  {
    Result<std::unique_ptr<SessionWork>> opened = open_work();
    if (opened.ok()) {
      ended = work(*opened.value());
      // What it holds of the device is given back in a turn, as it was taken.
      const Turns::Turn turn(turns_);
      work_ = nullptr;
      opened.value().reset();
    } else {
      ended = opened.status();
    }
  }
  scratch_bytes_.store(0, std::memory_order_relaxed);
  channel_->mark_dead();
  // It holds the session until the loop has joined this thread.
  loop_.post([self = shared_from_this(), text = ended.describe()] {
    self->end(text);
    self->finish();
  });
}

Result<std::unique_ptr<SessionWork>> Session::open_work() {
  const Turns::Turn turn(turns_);
  Result<std::unique_ptr<SessionWork>> opened = backend_.open_session(options_.spec);
  if (opened.ok()) work_ = opened.value().get();
  return opened;
}

Status Session::work(SessionWork& work) {
  ring::Consumer& in = channel_->in();
  while (true) {
    // Only looks: the message stays until its turn.
    const Result<std::span<const std::byte>> message = in.next(ring::Clock::now() + kPatience);
    if (!message.ok()) return message.status();
    if (message.value().empty()) {
      if (channel_->dead()) return Status(Code::kPeerGone, "its process has gone");
      continue;
    }
    const Turns::Turn turn(turns_);
    const Status handled = work.run(*channel_, turn.end());
    turns_taken_.fetch_add(1, std::memory_order_relaxed);
    scratch_bytes_.store(work.scratch_bytes(), std::memory_order_relaxed);
    most_bytes_.store(work.most_bytes(), std::memory_order_relaxed);
    device_ns_.fetch_add(static_cast<uint64_t>(turn.elapsed().count()), std::memory_order_relaxed);
    ROUSE_RETURN_IF_ERROR(handled);
  }
}

}  // namespace rouse::serve
