// An executor's parts in a thread of the test, and a caller of its link that waits.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <future>
#include <thread>

#include "echo_backend.h"
#include "rouse/serve/core_service.h"
#include "rouse/serve/frames.h"

namespace rouse::serve::testing {

// A folder that goes with the test.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/rouse-serve-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~Folder() { ::rmdir(path_.c_str()); }
  std::string operator/(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class InThread {
 public:
  explicit InThread(Config config = {}) : loop_(std::move(EventLoop::create()).value()), backend_(1 << 20) {
    config.listen = folder_ / "link";
    LinkLimits limits;
    limits.max_message_bytes = 1 << 20;
    limits.max_calls = config.max_calls;
    server_ = std::make_unique<LinkServer>(*loop_, limits);
    service_ = std::make_unique<CoreService>(*loop_, *server_, backend_, config);
    EXPECT_TRUE(server_->listen(config.listen).ok());
    thread_ = std::thread([this] { loop_->run(); });
  }
  ~InThread() {
    loop_->post([this] { server_->drain([this] { service_->stop([this] { loop_->stop(); }); }); });
    thread_.join();
  }
  std::string path(const char* name) const { return folder_ / name; }

 private:
  Folder folder_;
  std::unique_ptr<EventLoop> loop_;
  EchoBackend backend_;
  std::unique_ptr<LinkServer> server_;
  std::unique_ptr<CoreService> service_;
  std::thread thread_;
};

// Blocking, one thread; enough to look at every frame.
class Caller {
 public:
  struct Received {
    FrameKind kind;
    uint64_t call;
    std::string body;
  };

  explicit Caller(const std::string& path) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), reader_(1 << 20) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }

  void write(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t count = ::send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return;
      sent += static_cast<size_t>(count);
    }
  }
  void hello() {
    write(encode_frame(FrameKind::kHello, 0, {}, kLinkMagic.size()) + std::string(kLinkMagic));
    EXPECT_EQ(read()->kind, FrameKind::kHello);
  }
  void call(uint64_t number, const std::string& method, const std::string& body,
            std::chrono::microseconds timeout = std::chrono::seconds(20)) {
    write(encode_frame(FrameKind::kCall, number, encode_call_head(method, timeout, ""), body.size()) + body);
  }
  // The next frame; none where the other side hung up.
  std::optional<Received> read() {
    while (true) {
      Result<std::optional<Frame>> frame = reader_.next();
      EXPECT_TRUE(frame.ok());
      if (frame.value()) {
        return Received{frame.value()->kind, frame.value()->call, std::string(as_text(frame.value()->body))};
      }
      const std::span<std::byte> space = reader_.space();
      const ssize_t count = ::recv(fd_.get(), space.data(), space.size(), 0);
      if (count <= 0) return std::nullopt;
      reader_.received(static_cast<size_t>(count));
    }
  }
  Received ask(const std::string& method, const std::string& body) {
    call(++number_, method, body);
    return read().value_or(Received{FrameKind::kClosing, 0, "hung up"});
  }

 private:
  Fd fd_;
  FrameReader reader_;
  uint64_t number_ = 1000;
};

inline const std::string kCore = "/rouse.device.v1.CoreService/";
inline const std::string kExecute = "/rouse.device.v1.ExecutorService/Execute";

}  // namespace rouse::serve::testing
