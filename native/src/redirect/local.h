// Kernels that the client runs itself: allocation, views, copies over the border, reading one value.
#pragma once

#include <torch/library.h>

namespace rouse::redirect {

// Registers them under PrivateUse1, and what must pass through the conjugate and negative keys.
void register_local(torch::Library& aten);
void register_fallthroughs(torch::Library& conjugate, torch::Library& negative);
// Whether the operator has a kernel here.
bool is_local(const std::string& name);

}  // namespace rouse::redirect
