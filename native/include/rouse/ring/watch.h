// Notices at once that the process at the other end of a socket has ended, and marks the rings dead.
#pragma once

#include <functional>
#include <thread>

#include "rouse/ring/ring.h"

namespace rouse::ring {

// A thread that waits for `socket` to hang up. Neither the channel nor the socket is owned; both outlive it.
class PeerWatch {
 public:
  PeerWatch(Channel& channel, int socket);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

 private:
  void run(int socket);
  Channel& channel_;
  int stop_;  // An eventfd.
  std::thread thread_;
};

}  // namespace rouse::ring
