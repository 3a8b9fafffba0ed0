// The boxed kernel of all operators that are redirected.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace rouse::redirect {

void redirect(const c10::OperatorHandle& handle, torch::jit::Stack* stack);

}  // namespace rouse::redirect
