// Operators that are others on this device: PyTorch has no kernel of theirs for it, or one that is not its memory's.
#pragma once

#include <torch/library.h>

namespace rouse::redirect {

void register_substitutes(torch::Library& aten);

}  // namespace rouse::redirect
