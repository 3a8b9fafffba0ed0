#include "rouse/serve/session_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "rouse/serve/session_protocol.h"

namespace rouse::serve {

namespace {

std::string reason() { return std::strerror(errno); }

Result<Fd> dial(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return Status(Code::kInvalid, "a session's path must be shorter than " + std::to_string(sizeof(address.sun_path)) +
                                      " bytes: '" + path + "'");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Status(Code::kFailed, "socket failed: " + reason());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Status(Code::kPeerGone, "no executor listens at " + path + ": " + reason());
  }
  return fd;
}

// The greeting and the descriptor that comes with it.
Result<Fd> receive_rings(int socket, const std::string& path) {
  SessionGreeting greeting{};
  iovec part{&greeting, sizeof(greeting)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t count = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
  Fd rings;
  const cmsghdr* const head = count > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (head != nullptr && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
      head->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(head), sizeof(fd));
    rings = Fd(fd);
  }
  if (count == 0) return Status(Code::kPeerGone, "the executor at " + path + " closed the session before it began");
  if (count != static_cast<ssize_t>(sizeof(greeting)) || greeting.magic != kSessionMagic ||
      greeting.version != kSessionVersion || !rings.valid()) {
    return Status(Code::kMismatch,
                  "what listens at " + path + " is no session of version " + std::to_string(kSessionVersion));
  }
  return rings;
}

}  // namespace

Result<std::unique_ptr<SessionClient>> SessionClient::connect(const std::string& path,
                                                              std::chrono::milliseconds timeout) {
  Result<Fd> socket = dial(path);
  if (!socket.ok()) return socket.status();
  pollfd readable{socket.value().get(), POLLIN, 0};
  if (::poll(&readable, 1, static_cast<int>(timeout.count())) <= 0) {
    return Status(Code::kDeadline, "the executor at " + path + " did not greet in time");
  }
  Result<Fd> rings = receive_rings(socket.value().get(), path);
  if (!rings.ok()) return rings.status();
  Result<std::unique_ptr<ring::Channel>> channel = ring::Channel::open(ring::Side::kClient, rings.value().release());
  if (!channel.ok()) return channel.status();
  std::unique_ptr<SessionClient> client(new SessionClient());
  client->socket_ = std::move(socket).value();
  client->channel_ = std::move(channel).value();
  client->watch_ = std::make_unique<ring::PeerWatch>(*client->channel_, client->socket_.get());
  return client;
}

SessionClient::~SessionClient() {
  watch_.reset();
  if (channel_) channel_->mark_dead();
}

}  // namespace rouse::serve
