// Registers the stand-in in whatever process loads it.
#include "stand_in.h"

namespace {

[[maybe_unused]] const c10::Device kRegistered = rouse::accelerator::stand_in();

}  // namespace
