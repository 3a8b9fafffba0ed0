// What an executor's operators wait with for a mapped model's bytes.
#pragma once

#include <memory>

#include "rouse/executor/engine.h"
#include "rouse/serve/rpc_error.h"
#include "rouse/transfer/residency.h"

namespace rouse::serve {

// One session's or one replayer's view of a model on its way in.
class Arrival final : public executor::Residency {
 public:
  explicit Arrival(std::shared_ptr<transfer::Residency> model) : model_(std::move(model)) {}

  // Waits end then at the latest, or after a minute.
  void limit(transfer::Deadline deadline) { limit_ = deadline; }

  bool all_ready() const override { return model_ == nullptr || model_->all_ready(); }
  Status wait_ready(uint64_t address, uint64_t bytes) override;
  Status wait_rows(uint64_t table, uint64_t row_bytes, std::span<const int64_t> rows) override;

  // What a request is answered whose wait ended with `waited`; none where it failed of something else.
  std::optional<RpcError> error(const Status& waited) const;

 private:
  transfer::Deadline deadline() const;

  const std::shared_ptr<transfer::Residency> model_;
  transfer::Deadline limit_ = transfer::Deadline::max();
};

}  // namespace rouse::serve
