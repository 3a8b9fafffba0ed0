// The stand-in's kernels: every operator of the CPU, run on the stand-in's memory.
#pragma once

namespace rouse::accelerator {

void register_kernels();

}  // namespace rouse::accelerator
