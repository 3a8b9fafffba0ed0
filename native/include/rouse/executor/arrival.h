// Waiting for the weights that an operator reads, and for no others.
#pragma once

#include <ATen/core/TensorBase.h>

#include <cstdint>
#include <span>

#include "rouse/executor/engine.h"
#include "rouse/executor/operation.h"

namespace rouse::executor {

// Waits for slot `slot` of a call, whose storage lies at `address` in a model's range. `tensors` are the call's, one a
// slot; of a table that is read by rows, only the rows that it names are waited for.
Status wait_for_slot(Residency& residency, const Operation& operation, std::uint32_t slot, std::uint64_t address,
                     std::span<const at::Tensor> tensors);

}  // namespace rouse::executor
