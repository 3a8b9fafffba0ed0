// A device on the host: its memory is memory of this process, its kernels are PyTorch's for the CPU.
//
// Physical memory is a pool of 2 MiB pieces that stay filled with pages. Mapping a chunk *moves* its pieces under the
// model's range (mremap): the kernel moves page tables, so there are neither page faults nor zeroing on the way in,
// which would cost three times the copy. Unmapping moves them back.
#pragma once

#include <cstdint>
#include <memory>

#include "rouse/device/device.h"

namespace rouse::device {

struct HostOptions {
  uint64_t capacity = 0;  // a multiple of 2 MiB
  // Take all pages at once, at start: later swaps then never wait for the kernel to find memory.
  bool prefault = false;
};

// kInvalid: the capacity; kExhausted: no addresses for it; kUnsupported: this kernel cannot move pages (before 5.7).
Result<std::unique_ptr<Device>> make_host_device(const HostOptions& options);

}  // namespace rouse::device
