#include "rouse/ring/watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace rouse::ring {

PeerWatch::PeerWatch(Channel& channel, int socket) : channel_(channel), stop_(eventfd(0, EFD_CLOEXEC)) {
  thread_ = std::thread([this, socket] { run(socket); });
}

PeerWatch::~PeerWatch() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(stop_, &one, sizeof(one));
  thread_.join();
  close(stop_);
}

void PeerWatch::run(int socket) {
  pollfd watched[2] = {{socket, POLLRDHUP, 0}, {stop_, POLLIN, 0}};
  while (true) {
    const int ready = poll(watched, 2, -1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0 || watched[1].revents != 0) return;
    if (watched[0].revents != 0) {
      channel_.mark_dead();
      return;
    }
  }
}

}  // namespace rouse::ring
