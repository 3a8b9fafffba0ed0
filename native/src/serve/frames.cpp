#include "rouse/serve/frames.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace rouse::serve {

namespace {

constexpr size_t kBufferBytes = 64 << 10;
// Microseconds of the longest deadline that is believed: a day. Longer ones are cut, so that clocks cannot overflow.
constexpr uint64_t kMaxTimeoutUs = 86'400'000'000;
constexpr size_t kCallHeadBytes = 9;
static_assert(std::endian::native == std::endian::little, "headers are read as they lie");

}  // namespace

std::string encode_frame(FrameKind kind, uint64_t call, std::string_view head, size_t body_bytes) {
  const FrameHeader header{static_cast<uint32_t>(head.size() + body_bytes), static_cast<uint8_t>(kind), 0,
                           static_cast<uint16_t>(head.size()), call};
  std::string out(reinterpret_cast<const char*>(&header), sizeof(header));
  return out.append(head);
}

std::string encode_call_head(std::string_view method, std::chrono::microseconds timeout, std::string_view traceparent) {
  const uint64_t micros = std::max<int64_t>(1, timeout.count());
  std::string out(reinterpret_cast<const char*>(&micros), sizeof(micros));
  out.push_back(static_cast<char>(method.size()));
  return out.append(method).append(traceparent);
}

Result<CallHead> read_call_head(Bytes head) {
  if (head.size() < kCallHeadBytes) return Status(Code::kInvalid, "the head of a call is cut off");
  uint64_t micros = 0;
  std::memcpy(&micros, head.data(), sizeof(micros));
  const auto size = static_cast<size_t>(head[sizeof(micros)]);
  const std::string_view rest = as_text(head.subspan(kCallHeadBytes));
  if (rest.size() < size) return Status(Code::kInvalid, "the head of a call is shorter than its method");
  return CallHead{std::chrono::microseconds(std::min(micros, kMaxTimeoutUs)), std::string(rest.substr(0, size)),
                  std::string(rest.substr(size))};
}

FrameReader::FrameReader(size_t max_bytes)
    : max_bytes_(max_bytes), capacity_(kBufferBytes), buffer_(std::make_unique_for_overwrite<std::byte[]>(capacity_)) {}

void FrameReader::resize(size_t capacity) {
  auto larger = std::make_unique_for_overwrite<std::byte[]>(capacity);
  std::memcpy(larger.get(), buffer_.get() + start_, end_ - start_);
  buffer_ = std::move(larger);
  end_ -= start_;
  start_ = 0;
  capacity_ = capacity;
}

std::span<std::byte> FrameReader::space() {
  if (start_ == end_) start_ = end_ = 0;
  const size_t needed = std::max(kBufferBytes, wanted_);
  if (capacity_ < needed || (capacity_ > kBufferBytes && wanted_ == 0 && end_ - start_ < kBufferBytes)) {
    resize(needed);
  } else if (end_ == capacity_ || start_ + wanted_ > capacity_) {
    std::memmove(buffer_.get(), buffer_.get() + start_, end_ - start_);
    end_ -= start_;
    start_ = 0;
  }
  return {buffer_.get() + end_, capacity_ - end_};
}

Result<std::optional<Frame>> FrameReader::next() {
  wanted_ = 0;
  if (end_ - start_ < sizeof(FrameHeader)) return std::optional<Frame>();
  FrameHeader header;
  std::memcpy(&header, buffer_.get() + start_, sizeof(header));
  if (header.kind > static_cast<uint8_t>(FrameKind::kClosing)) {
    return Status(Code::kInvalid,
                  "there is no frame of kind " + std::to_string(header.kind) + "; is the peer a link of this mesh?");
  }
  if (header.head > header.length || header.head > kMaxHeadBytes) {
    return Status(Code::kInvalid,
                  "a head of " + std::to_string(header.head) + " bytes in a frame of " + std::to_string(header.length));
  }
  if (header.length - header.head > max_bytes_) {
    return Status(Code::kInvalid, "a message of " + std::to_string(header.length - header.head) + " bytes; at most " +
                                      std::to_string(max_bytes_) + " are allowed");
  }
  const size_t whole = sizeof(header) + header.length;
  if (end_ - start_ < whole) {
    wanted_ = whole;
    return std::optional<Frame>();
  }
  const Bytes content(buffer_.get() + start_ + sizeof(header), header.length);
  start_ += whole;
  return std::optional(Frame{static_cast<FrameKind>(header.kind), header.call, content.first(header.head),
                             content.subspan(header.head)});
}

}  // namespace rouse::serve
