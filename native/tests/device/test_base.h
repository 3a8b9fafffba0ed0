// Where tests put their ranges: models' own base, but for the thread sanitizer, which knows few addresses.
#pragma once

#include <cstdint>

#include "rouse/device/device.h"

namespace rouse::device {

#if defined(__SANITIZE_THREAD__)
inline constexpr uint64_t kTestBase = 0x5660'0000'0000;
#else
inline constexpr uint64_t kTestBase = kModelBase;
#endif

}  // namespace rouse::device
