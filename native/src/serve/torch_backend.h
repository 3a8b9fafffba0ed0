// The device as PyTorch computes on it: engines for sessions, models mapped at their addresses, tapes.
#pragma once

#include <memory>

#include "rouse/device/device.h"
#include "rouse/executor/compute.h"
#include "rouse/serve/backend.h"
#include "rouse/serve/config.h"

namespace rouse::serve {

// One device, twice: as PyTorch computes on it, and as the memory that models are mapped into.
struct Hardware {
  executor::Compute compute;
  std::unique_ptr<device::Device> memory;
};

Result<std::unique_ptr<Backend>> make_torch_backend(const Config& config, Hardware hardware);
// On config.device. kExhausted, kUnsupported: it is not to be had.
Result<std::unique_ptr<Backend>> make_torch_backend(const Config& config);

}  // namespace rouse::serve
