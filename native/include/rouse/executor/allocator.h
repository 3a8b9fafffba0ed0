// PyTorch's CPU allocator in an executor: memory comes from the session that a thread works for.
#pragma once

#include <cstdint>

#include "rouse/base/status.h"
#include "rouse/executor/arena.h"
#include "rouse/executor/heap.h"
#include "rouse/executor/lifetime_log.h"

namespace rouse::executor {

// Replaces the process's CPU allocator; what was allocated before is freed as it was. Threads that work for no session
// (PyTorch's own helpers) share one heap of at most `shared_bytes`, in which every block is cleared before it is given
// out, as blocks pass between sessions there. Calling it again does nothing.
Status install_allocator(std::uint64_t shared_bytes);

// While it lives, what this thread allocates comes from `heap`; from `arena` first, where there is one and a replay
// has begun in it; through `log`, where there is one.
class UseHeap {
 public:
  explicit UseHeap(Heap& heap, Arena* arena = nullptr, LifetimeLog* log = nullptr);
  ~UseHeap();
  UseHeap(const UseHeap&) = delete;
  UseHeap& operator=(const UseHeap&) = delete;

  // What this thread allocates from; null: from the shared heap, or install_allocator() was not called.
  static Heap* heap();
  // Blocks given at their planned place, and others, since this object was made.
  std::uint64_t planned() const;
  std::uint64_t unplanned() const;

  struct Current {
    Heap* heap = nullptr;
    Arena* arena = nullptr;
    LifetimeLog* log = nullptr;
    std::uint64_t planned = 0, unplanned = 0;
  };

 private:
  Current before_;
};

}  // namespace rouse::executor
