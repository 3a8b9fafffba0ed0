// The frames of a link (docs/decisions/0005; rouse_common.link.frames is the same in Python): a header of 16 bytes
// (length of what follows, kind, length of the head, call id; little-endian), a head and a body.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "rouse/base/status.h"
#include "rouse/serve/protobuf.h"

namespace rouse::serve {

enum class FrameKind : uint8_t {
  kHello = 0,    // First frame in each direction: the body is kLinkMagic.
  kCall = 1,     // Client: the head is a CallHead, the body the request.
  kCancel = 2,   // Client: nothing of the call is answered any more.
  kCredit = 3,   // Client: that many (u32) further responses may be sent.
  kMessage = 4,  // Server: one response; more may follow.
  kLast = 5,     // Server: the last response.
  kEnd = 6,      // Server: the call ended well; no body.
  kError = 7,    // Server: the call ended; the body is a google.rpc.Status.
  kClosing = 8,  // Server: it stops; new calls go elsewhere.
};

inline constexpr std::string_view kLinkMagic = "rouse-link/1";
inline constexpr size_t kMaxHeadBytes = 1024;

struct FrameHeader {
  uint32_t length;
  uint8_t kind;
  uint8_t padding;
  uint16_t head;
  uint64_t call;
};
static_assert(sizeof(FrameHeader) == 16 && offsetof(FrameHeader, head) == 6 && offsetof(FrameHeader, call) == 8);

// One frame as it was received; head and body lie in the reader's buffer until its next `space()`.
struct Frame {
  FrameKind kind;
  uint64_t call;
  Bytes head;
  Bytes body;
};

// What a CALL says beside its request.
struct CallHead {
  std::chrono::microseconds timeout;
  std::string method;
  std::string traceparent;
};

// Header and head of a frame whose body has `body_bytes` bytes.
std::string encode_frame(FrameKind kind, uint64_t call, std::string_view head, size_t body_bytes);
std::string encode_call_head(std::string_view method, std::chrono::microseconds timeout, std::string_view traceparent);
// INVALID where the head is cut off.
Result<CallHead> read_call_head(Bytes head);

// Cuts frames out of what a connection receives. Its buffer grows to the one frame under way, which is bounded, and
// shrinks after it.
class FrameReader {
 public:
  // `max_bytes`: largest body.
  explicit FrameReader(size_t max_bytes);

  // Where the next bytes go; never empty. Ends the life of frames given before.
  std::span<std::byte> space();
  void received(size_t count) { end_ += count; }
  // The next whole frame, or none yet. INVALID for what is no frame; the reader is useless from then on.
  Result<std::optional<Frame>> next();

 private:
  void resize(size_t capacity);

  size_t max_bytes_;
  size_t capacity_;
  std::unique_ptr<std::byte[]> buffer_;
  size_t start_ = 0;
  size_t end_ = 0;
  size_t wanted_ = 0;
};

}  // namespace rouse::serve
