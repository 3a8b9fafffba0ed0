// Writes down when each block of a replay came and went, for the plan of the replays after it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "rouse/base/status.h"
#include "rouse/executor/heap.h"
#include "rouse/tape/plan.h"

namespace rouse::executor {

// Blocks come from a heap and go back to it; the log stands between. It outlives its last block, as a heap does.
class LifetimeLog final : public BlockOwner {
 public:
  struct Closer {
    void operator()(LifetimeLog* log) const { log->close(); }
  };
  using Handle = std::unique_ptr<LifetimeLog, Closer>;
  static Handle make();

  Result<void*> allocate(Heap& heap, std::size_t bytes);
  void give_back(void* data) override;
  // Ends the log: all blocks until now, in order. What still lives has `until` kNeverFreed. More than
  // tape::kMaxPlanned blocks are not written down: EXHAUSTED.
  Result<std::vector<tape::Lifetime>> finish();

  static constexpr std::uint32_t kNeverFreed = ~std::uint32_t{0};

 private:
  LifetimeLog() = default;
  ~LifetimeLog() = default;
  void close();

  std::mutex mutex_;
  std::vector<tape::Lifetime> blocks_;
  std::uint32_t step_ = 0;
  std::uint64_t holders_ = 1;  // live blocks, and the handle
  bool finished_ = false;
  bool too_many_ = false;
};

// A plan for what a log found: blocks never freed are left out of it, and each has room for its header.
Result<tape::Plan> plan_of(std::span<const tape::Lifetime> blocks);

}  // namespace rouse::executor
