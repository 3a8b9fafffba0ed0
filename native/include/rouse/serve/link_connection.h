// One accepted connection of a link: frames in, frames out, and no more of them in memory than the limits allow.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "rouse/serve/frames.h"
#include "rouse/serve/loop.h"

namespace rouse::serve {

class LinkConnection : public std::enable_shared_from_this<LinkConnection> {
 public:
  // `max_unsent_bytes`: a peer that lets so much wait is closed.
  LinkConnection(EventLoop& loop, uint64_t id, Fd fd, size_t max_message_bytes, size_t max_unsent_bytes);

  uint64_t id() const { return id_; }
  int fd() const { return fd_.get(); }
  FrameReader& reader() { return reader_; }
  bool greeted = false;

  // From any thread. Writes at once what the socket takes, so that an answer waits for no other thread.
  void send(FrameKind kind, uint64_t call, std::string_view body);
  // Loop's thread: the socket takes more. False where it broke.
  bool flush();
  // Loop's thread: the socket is closed, and what is sent from now on goes nowhere.
  void shut();
  bool broken() const;

 private:
  bool write_locked(std::string_view first, std::string_view second);
  void arm_locked();

  EventLoop& loop_;
  const uint64_t id_;
  Fd fd_;
  FrameReader reader_;
  const size_t max_unsent_bytes_;

  mutable std::mutex mutex_;
  std::deque<std::string> unsent_;
  size_t unsent_start_ = 0;
  size_t unsent_bytes_ = 0;
  bool broken_ = false;
};

}  // namespace rouse::serve
