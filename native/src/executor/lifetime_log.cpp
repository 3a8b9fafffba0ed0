#include "rouse/executor/lifetime_log.h"

#include <string>

#include "rouse/executor/arena.h"

namespace rouse::executor {

LifetimeLog::Handle LifetimeLog::make() { return Handle(new LifetimeLog); }

Result<void*> LifetimeLog::allocate(Heap& heap, std::size_t bytes) {
  auto block = heap.allocate(bytes);
  if (!block.ok()) return block;
  std::lock_guard lock(mutex_);
  if (finished_ || too_many_) return block;
  if (blocks_.size() == tape::kMaxPlanned) {
    too_many_ = true;
    return block;
  }
  BlockHeader* header = header_of(block.value());
  header->inner = header->owner;
  header->owner = this;
  header->index = static_cast<std::uint32_t>(blocks_.size());
  blocks_.push_back({bytes, step_++, kNeverFreed});
  ++holders_;
  return block;
}

void LifetimeLog::give_back(void* data) {
  BlockHeader* header = header_of(data);
  bool last;
  {
    std::lock_guard lock(mutex_);
    if (!finished_) blocks_[header->index].until = step_++;
    last = --holders_ == 0;
  }
  header->owner = header->inner;
  header->owner->give_back(data);
  if (last) delete this;
}

Result<std::vector<tape::Lifetime>> LifetimeLog::finish() {
  std::lock_guard lock(mutex_);
  finished_ = true;
  if (too_many_)
    return Status(Code::kExhausted, "a replay made more than " + std::to_string(tape::kMaxPlanned) + " blocks");
  return std::move(blocks_);
}

void LifetimeLog::close() {
  bool last;
  {
    std::lock_guard lock(mutex_);
    finished_ = true;
    last = --holders_ == 0;
  }
  if (last) delete this;
}

Result<tape::Plan> plan_of(std::span<const tape::Lifetime> blocks) {
  std::vector<tape::Lifetime> planned;
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].until == LifetimeLog::kNeverFreed) continue;
    planned.push_back({arena_bytes(blocks[i].bytes), blocks[i].from, blocks[i].until});
    which.push_back(i);
  }
  auto made = tape::make_plan(planned);
  if (!made.ok()) return made.status();
  tape::Plan plan{std::vector<std::uint64_t>(blocks.size(), tape::kUnplanned), made.value().bytes};
  for (std::size_t i = 0; i < which.size(); ++i) plan.offsets[which[i]] = made.value().offsets[i];
  return plan;
}

}  // namespace rouse::executor
