// Whether an object's state is one that its class makes. Packing trusts it: sizes are divided by, and memory is read as
// far as they say.
#pragma once

#include <ATen/core/ivalue.h>

#include <string_view>

namespace rouse::executor {

// Empty, or what is wrong. `state` has the type that the class's __setstate__ takes.
std::string_view wrong_state(std::string_view class_name, const c10::IValue& state);

}  // namespace rouse::executor
