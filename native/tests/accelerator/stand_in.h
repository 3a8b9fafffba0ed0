// A device that is not the CPU, for tests on machines without one: PyTorch's PrivateUse1 in the executor's own process.
// Its kernels are the CPU's, run on memory that nobody else may touch (memory.h); what fails in one is heard of at the
// next synchronisation, as on a device that computes beside the host. It proves that nothing on the way takes the
// device's memory for the process's own, and nothing about the speed or the numbers of a real device.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace rouse::accelerator {

// Registers it, once a process.
c10::Device stand_in();

// How often somebody has waited for it.
std::uint64_t synchronisations();
std::uint64_t kernels_run();
// Of its memory that somebody holds.
std::uint64_t live_blocks();
// The next kernel fails on the device: whoever waits for it next hears of it, once.
void fail_next(const std::string& why);

}  // namespace rouse::accelerator
