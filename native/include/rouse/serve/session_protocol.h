// What passes over a session's socket: one greeting with the rings' descriptor, from the executor to the one process
// that connects, and nothing after it. The connection's end tells either side that the other is gone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rouse::serve {

struct SessionGreeting {
  uint64_t magic;
  uint32_t version;
  uint32_t reserved;
};
static_assert(sizeof(SessionGreeting) == 16 && offsetof(SessionGreeting, version) == 8);

inline constexpr uint64_t kSessionMagic = 0x4e4f'4953'5345'5352ull;  // "RSESSION"
inline constexpr uint32_t kSessionVersion = 1;

}  // namespace rouse::serve
