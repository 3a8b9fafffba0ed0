// A CUDA device by the driver API: virtual memory management (reserve, create, map), pinned memory, streams, events.
//
// The driver (libcuda.so.1) is loaded when the first device is made: one build serves machines with and without a GPU.
// The driver treats the address of a reservation as a hint: what it gives is compared, and a mismatch refused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "rouse/device/device.h"

namespace rouse::device {

struct CudaOptions {
  int ordinal = 0;
  uint64_t capacity = 0;  // a multiple of the granularity; 0: what is free on the device now, but for 5%
  std::string driver = "libcuda.so.1";
};

// kUnsupported: no driver, or one that lacks what is needed; kNotFound: no such device; kInvalid: the capacity.
Result<std::unique_ptr<Device>> make_cuda_device(const CudaOptions& options);

}  // namespace rouse::device
