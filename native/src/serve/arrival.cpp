#include "arrival.h"

#include <algorithm>
#include <chrono>

namespace rouse::serve {

namespace {

constexpr auto kPatience = std::chrono::minutes(1);

Status explained(const Status& status) {
  if (status.ok()) return status;
  return {status.code(), "the weights that it reads did not arrive: " + status.text()};
}

}  // namespace

transfer::Deadline Arrival::deadline() const { return std::min(limit_, std::chrono::steady_clock::now() + kPatience); }

Status Arrival::wait_ready(uint64_t address, uint64_t bytes) {
  return model_ ? explained(model_->wait_ready(address, bytes, deadline())) : Status();
}

Status Arrival::wait_rows(uint64_t table, uint64_t row_bytes, std::span<const int64_t> rows) {
  return model_ ? explained(model_->wait_rows(table, row_bytes, rows, deadline())) : Status();
}

std::optional<RpcError> Arrival::error(const Status& waited) const {
  if (model_ == nullptr || waited.ok()) return std::nullopt;
  const Status failure = model_->failure();
  if (failure.code() == Code::kCancelled) {
    return RpcError{RpcCode::kFailedPrecondition, "STALE_LEASE",
                    "the model was unmapped while its weights were arriving; acquire a new lease"};
  }
  if (!failure.ok()) return RpcError{RpcCode::kUnavailable, "SWAP_FAILED", waited.text()};
  if (waited.code() == Code::kDeadline) return RpcError{RpcCode::kDeadlineExceeded, "SWAP_TOO_SLOW", waited.text()};
  return std::nullopt;
}

}  // namespace rouse::serve
