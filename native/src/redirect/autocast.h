// Automatic mixed precision, as PyTorch has it for the CPU: same operators, same choices.
#pragma once

#include <torch/library.h>

namespace rouse::redirect {

void register_autocast(torch::Library& aten, torch::Library& otherwise);

}  // namespace rouse::redirect
