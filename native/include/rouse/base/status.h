// Errors of the native core: a closed set of codes with a reason that a person can act on.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <utility>

namespace rouse {

enum class Code : unsigned char {
  kOk = 0,
  kInvalid,    // What was given can never work: bad lengths, ids, dtypes.
  kNotFound,   // A name or an id that is not there.
  kExhausted,  // Memory or room that may be there later.
  kRefused,    // Not allowed now, or not to this caller.
  kMismatch,   // Another address, size, shape or version than was agreed.
  kCancelled,  // Told to stop.
  kDeadline,   // Not done in time.
  kPeerGone,   // The process on the other side has ended.
  kUnsupported,  // Not implemented, by name.
  kFailed,     // Everything else; the text says what.
};

// The code's name as it stands in logs and errors, as "PEER_GONE".
const char* name_of(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string text) : code_(code), text_(std::move(text)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& text() const { return text_; }
  // "MISMATCH: the range …"
  std::string describe() const;

 private:
  Code code_ = Code::kOk;
  std::string text_;
};

// A value, or why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace rouse

#define ROUSE_RETURN_IF_ERROR(expression)              \
  do {                                                 \
    ::rouse::Status rouse_status_ = (expression);      \
    if (!rouse_status_.ok()) return rouse_status_;     \
  } while (false)
