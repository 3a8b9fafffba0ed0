// The instance's end of a session: connects to the executor, takes the rings, and notices at once when it is gone.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "rouse/base/fd.h"
#include "rouse/ring/ring.h"
#include "rouse/ring/watch.h"

namespace rouse::serve {

// Holds the connection; as long as it lives, the executor keeps the session. When the executor hangs up, the rings are
// marked dead, which wakes whoever waits on them with kPeerGone.
class SessionClient {
 public:
  // PEER_GONE where nobody listens at `path`; DEADLINE; MISMATCH where it is no session of this version.
  static Result<std::unique_ptr<SessionClient>> connect(const std::string& path, std::chrono::milliseconds timeout);
  ~SessionClient();
  SessionClient(const SessionClient&) = delete;
  SessionClient& operator=(const SessionClient&) = delete;

  ring::Channel& channel() { return *channel_; }

 private:
  SessionClient() = default;

  Fd socket_;
  std::unique_ptr<ring::Channel> channel_;
  std::unique_ptr<ring::PeerWatch> watch_;  // Last: it uses both.
};

}  // namespace rouse::serve
