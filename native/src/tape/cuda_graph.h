// CUDA's graphs behind PyTorch's interface of any device's: PyTorch has a class of them, and does not put it there.
#pragma once

#include "rouse/base/status.h"

namespace rouse::tape {

// Registers them, once a process, unless PyTorch has. UNSUPPORTED, with why, where its class is not the one known here.
Status register_cuda_graphs();

}  // namespace rouse::tape
