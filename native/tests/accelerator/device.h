// The stand-in's memory as a device of the native core: ranges at fixed addresses for weights, which this process may
// not touch either.
#pragma once

#include <cstdint>
#include <memory>

#include "rouse/device/device.h"

namespace rouse::accelerator {

// kInvalid: a capacity that is no multiple of 2 MiB.
Result<std::unique_ptr<device::Device>> make_device(std::uint64_t capacity);

}  // namespace rouse::accelerator
