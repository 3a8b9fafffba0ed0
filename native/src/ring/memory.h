// The mapping behind both rings: a head page with the controls, then each direction's data, mapped twice in a row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rouse/ring/ring.h"

namespace rouse::ring {

// What the memfd begins with.
struct Layout {
  Head head;
  Control to_executor;
  Control to_client;
};
inline constexpr std::size_t kLayoutBytes = 4096;
static_assert(sizeof(Layout) <= kLayoutBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

struct Memory {
  int descriptor = -1;
  Layout* layout = nullptr;
  std::size_t bytes = 0;                    // Of one direction.
  std::byte* data[2] = {nullptr, nullptr};  // To the executor, to the client; 2 * bytes of addresses each.

  ~Memory();
};

}  // namespace rouse::ring
