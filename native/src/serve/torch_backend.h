// The device as PyTorch computes on it: engines for sessions, models mapped at their addresses, tapes.
#pragma once

#include <memory>

#include "rouse/serve/backend.h"
#include "rouse/serve/config.h"

namespace rouse::serve {

// kExhausted, kUnsupported: the device's memory is not to be had.
Result<std::unique_ptr<Backend>> make_torch_backend(const Config& config);

}  // namespace rouse::serve
