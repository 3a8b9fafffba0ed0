// Recurrent layers: as one operator of the executor, or step by step where PyTorch has to look into them.
#pragma once

#include <torch/library.h>

namespace rouse::redirect {

// Registers them for tensors of the device and for those that autograd records.
void register_recurrent(torch::Library& aten, torch::Library& autograd);

}  // namespace rouse::redirect
