// Errors as they are answered over a link: a serialised google.rpc.Status with ErrorInfo and RetryInfo, which the
// Python side reads as its typed errors (rouse_common.errors).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rouse/base/status.h"

namespace rouse::serve {

// gRPC's numbers.
enum class RpcCode : int {
  kCancelled = 1,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
};

struct RpcError {
  RpcCode code = RpcCode::kInternal;
  std::string reason;   // UPPER_SNAKE_CASE, for programs.
  std::string message;  // For people.
  std::vector<std::pair<std::string, std::string>> metadata = {};
  std::optional<double> retry_after_s = {};
};

// The serialised google.rpc.Status. The message is cut where a header could not hold it.
std::string encode(const RpcError& error);

// The error that a status of the core stands for; its reason is the code's name.
RpcError to_rpc(const Status& status);

}  // namespace rouse::serve
