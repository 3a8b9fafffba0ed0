#include "rouse/serve/link_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>

namespace rouse::serve {

LinkConnection::LinkConnection(EventLoop& loop, uint64_t id, Fd fd, size_t max_message_bytes, size_t max_unsent_bytes)
    : loop_(loop), id_(id), fd_(std::move(fd)), reader_(max_message_bytes), max_unsent_bytes_(max_unsent_bytes) {}

bool LinkConnection::broken() const {
  const std::lock_guard lock(mutex_);
  return broken_;
}

void LinkConnection::shut() {
  const std::lock_guard lock(mutex_);
  broken_ = true;
  fd_.reset();
  unsent_.clear();
  unsent_bytes_ = unsent_start_ = 0;
}

void LinkConnection::send(FrameKind kind, uint64_t call, std::string_view body) {
  const std::string start = encode_frame(kind, call, {}, body.size());
  const std::lock_guard lock(mutex_);
  if (broken_) return;
  if (!unsent_.empty()) {
    unsent_.push_back(start);
    unsent_.back().append(body);
    unsent_bytes_ += unsent_.back().size();
  } else if (!write_locked(start, body)) {
    broken_ = true;
  }
  if (unsent_bytes_ > max_unsent_bytes_) broken_ = true;
  // The loop's thread finds out by itself where the connection is broken, once it is told to look.
  if (broken_ || unsent_bytes_ > 0) arm_locked();
}

void LinkConnection::arm_locked() {
  loop_.post([self = shared_from_this()] {
    // Under the lock, so that the number is not another's meanwhile: `shut` closes it on this same thread.
    if (self->fd_.valid()) self->loop_.change(self->fd_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP);
  });
}

// Sends what the socket takes and keeps the rest.
bool LinkConnection::write_locked(std::string_view first, std::string_view second) {
  std::array<iovec, 2> parts{
      {{const_cast<char*>(first.data()), first.size()}, {const_cast<char*>(second.data()), second.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) {
    if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
    sent = 0;
  }
  auto taken = static_cast<size_t>(sent);
  if (taken == first.size() + second.size()) return true;
  std::string rest;
  if (taken < first.size()) rest.append(first.substr(taken));
  rest.append(second.substr(taken < first.size() ? 0 : taken - first.size()));
  unsent_bytes_ += rest.size();
  unsent_.push_back(std::move(rest));
  return true;
}

bool LinkConnection::flush() {
  const std::lock_guard lock(mutex_);
  while (!broken_ && !unsent_.empty()) {
    const std::string_view left = std::string_view(unsent_.front()).substr(unsent_start_);
    const ssize_t sent = ::send(fd_.get(), left.data(), left.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) break;
      broken_ = true;
      break;
    }
    unsent_start_ += static_cast<size_t>(sent);
    unsent_bytes_ -= static_cast<size_t>(sent);
    if (unsent_start_ == unsent_.front().size()) {
      unsent_.pop_front();
      unsent_start_ = 0;
    }
  }
  if (!broken_ && unsent_.empty()) loop_.change(fd_.get(), EPOLLIN | EPOLLRDHUP);
  return !broken_;
}

}  // namespace rouse::serve
