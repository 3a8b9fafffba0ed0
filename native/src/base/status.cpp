#include "rouse/base/status.h"

namespace rouse {

const char* name_of(Code code) {
  switch (code) {
    case Code::kOk:
      return "OK";
    case Code::kInvalid:
      return "INVALID";
    case Code::kNotFound:
      return "NOT_FOUND";
    case Code::kExhausted:
      return "EXHAUSTED";
    case Code::kRefused:
      return "REFUSED";
    case Code::kMismatch:
      return "MISMATCH";
    case Code::kCancelled:
      return "CANCELLED";
    case Code::kDeadline:
      return "DEADLINE";
    case Code::kPeerGone:
      return "PEER_GONE";
    case Code::kUnsupported:
      return "UNSUPPORTED";
    case Code::kFailed:
      return "FAILED";
  }
  return "UNKNOWN";
}

std::string Status::describe() const { return std::string(name_of(code_)) + ": " + text_; }

}  // namespace rouse
