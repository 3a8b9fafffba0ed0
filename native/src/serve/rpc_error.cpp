#include "rouse/serve/rpc_error.h"

#include <cmath>

#include "rouse/serve/protobuf.h"

namespace rouse::serve {

namespace {

// As rouse_contracts.status bounds them, in bytes that may each cost three in a header.
constexpr size_t kMaxMessageBytes = 1000;
constexpr size_t kMaxMetadataBytes = 300;
constexpr size_t kMaxMetadataEntries = 8;
constexpr const char* kDomain = "rouse";

// At most `most` bytes, never half of a character; bytes that are no UTF-8 become "?", because a string field of
// protobuf must hold nothing else and texts may quote what a peer sent.
std::string clean(const std::string& text, size_t most) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    size_t length = lead < 0x80 ? 1 : lead >= 0xC2 && lead < 0xE0 ? 2 : (lead & 0xF0) == 0xE0 ? 3 : 0;
    if (lead >= 0xF0 && lead < 0xF5) length = 4;
    bool good = length > 0 && at + length <= text.size();
    for (size_t i = 1; good && i < length; ++i) good = (static_cast<unsigned char>(text[at + i]) & 0xC0) == 0x80;
    // Surrogates, overlong forms, and what lies past the last character.
    if (good && length >= 3) {
      const auto second = static_cast<unsigned char>(text[at + 1]);
      good = !(lead == 0xE0 && second < 0xA0) && !(lead == 0xED && second >= 0xA0) &&
             !(lead == 0xF0 && second < 0x90) && !(lead == 0xF4 && second >= 0x90);
    }
    if (!good) length = 1;
    if (out.size() + length > most) return out;
    out.append(good ? text.substr(at, length) : "?");
    at += length;
  }
  return out;
}

std::string any(const char* type, const std::string& value) {
  return ProtoWriter().text(1, std::string("type.googleapis.com/google.rpc.") + type).text(2, value).out();
}

std::string error_info(const RpcError& error) {
  ProtoWriter info;
  info.text(1, error.reason).text(2, kDomain);
  size_t entries = 0;
  for (const auto& [key, value] : error.metadata) {
    if (++entries > kMaxMetadataEntries) break;
    info.element(3,
                 ProtoWriter().text(1, clean(key, kMaxMetadataBytes)).text(2, clean(value, kMaxMetadataBytes)).out());
  }
  return any("ErrorInfo", info.out());
}

std::string retry_info(double seconds) {
  const double whole = std::floor(seconds);
  ProtoWriter duration;
  duration.varint(1, static_cast<uint64_t>(whole)).varint(2, static_cast<uint64_t>((seconds - whole) * 1e9));
  return any("RetryInfo", ProtoWriter().element(1, duration.out()).out());
}

RpcCode code_of(Code code) {
  switch (code) {
    case Code::kInvalid:
    case Code::kMismatch:
      return RpcCode::kInvalidArgument;
    case Code::kNotFound:
      return RpcCode::kNotFound;
    case Code::kExhausted:
      return RpcCode::kResourceExhausted;
    case Code::kRefused:
      return RpcCode::kFailedPrecondition;
    case Code::kCancelled:
      return RpcCode::kCancelled;
    case Code::kDeadline:
      return RpcCode::kDeadlineExceeded;
    case Code::kPeerGone:
      return RpcCode::kUnavailable;
    case Code::kUnsupported:
      return RpcCode::kUnimplemented;
    case Code::kOk:
    case Code::kFailed:
      return RpcCode::kInternal;
  }
  return RpcCode::kInternal;
}

}  // namespace

std::string encode(const RpcError& error) {
  ProtoWriter status;
  status.varint(1, static_cast<uint64_t>(error.code)).text(2, clean(error.message, kMaxMessageBytes));
  status.element(3, error_info(error));
  if (error.retry_after_s) status.element(3, retry_info(*error.retry_after_s));
  return std::move(status).out();
}

RpcError to_rpc(const Status& status) { return {code_of(status.code()), name_of(status.code()), status.text()}; }

}  // namespace rouse::serve
