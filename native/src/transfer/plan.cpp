#include "rouse/transfer/plan.h"

#include <algorithm>

#include "rouse/base/text.h"

namespace rouse::transfer {

namespace {

class Planner {
 public:
  Planner(uint64_t bytes, uint64_t group_bytes)
      : bytes_(bytes), group_bytes_(group_bytes), state_((bytes + kBlockBytes - 1) / kBlockBytes, State::kOpen) {}

  // Tables keep their blocks for the end, but for those at their edges that belong to something else as well.
  void defer(Extent extent) {
    each_block(extent, [&](uint64_t block) { state_[block] = State::kDeferred; });
  }
  void undefer(Extent extent) {
    const uint64_t end = extent.offset + extent.bytes;
    if (extent.bytes == 0) return;
    if (extent.offset % kBlockBytes != 0) state_[extent.offset / kBlockBytes] = State::kOpen;
    if (end % kBlockBytes != 0 && end != bytes_) state_[end / kBlockBytes] = State::kOpen;
  }
  void add(Extent extent, bool also_deferred) {
    each_block(extent, [&](uint64_t block) {
      if (state_[block] == State::kPlanned || (state_[block] == State::kDeferred && !also_deferred)) return;
      state_[block] = State::kPlanned;
      append(block);
    });
  }
  // Ends a group where one has begun.
  void close() {
    const auto size = static_cast<uint32_t>(plan_.extents.size());
    if (in_group_ == 0) return;
    plan_.ends.push_back(size);
    in_group_ = 0;
  }
  Plan take() {
    close();
    plan_.bytes = bytes_;
    return std::move(plan_);
  }

 private:
  enum class State : uint8_t { kOpen, kDeferred, kPlanned };

  template <typename Each>
  void each_block(Extent extent, Each each) {
    if (extent.bytes == 0) return;
    const uint64_t last = (extent.offset + extent.bytes - 1) / kBlockBytes;
    for (uint64_t block = extent.offset / kBlockBytes; block <= last; ++block) each(block);
  }
  void append(uint64_t block) {
    const uint64_t offset = block * kBlockBytes;
    const uint64_t size = std::min(kBlockBytes, bytes_ - offset);
    if (in_group_ > 0 && plan_.extents.back().offset + plan_.extents.back().bytes == offset) {
      plan_.extents.back().bytes += size;
    } else {
      plan_.extents.push_back({offset, size});
    }
    in_group_ += size;
    if (group_bytes_ > 0 && in_group_ >= group_bytes_) close();
  }

  const uint64_t bytes_;
  const uint64_t group_bytes_;
  std::vector<State> state_;
  Plan plan_;
  uint64_t in_group_ = 0;
};

}  // namespace

Result<Plan> plan_groups(uint64_t bytes, std::span<const Extent> order, std::span<const Extent> tables,
                         uint64_t group_bytes) {
  if (bytes == 0 || bytes / kBlockBytes > UINT32_MAX) return Status(Code::kInvalid, text("a model of ", bytes, " B"));
  if (order.size() > kMaxExtents || tables.size() > kMaxExtents) {
    return Status(Code::kInvalid, text("the order of a copy names ", order.size() + tables.size(), " tensors: at most ",
                                       kMaxExtents, " are planned"));
  }
  for (const auto& extents : {order, tables}) {
    for (const Extent& extent : extents) {
      if (extent.offset > bytes || extent.bytes > bytes - extent.offset) {
        return Status(Code::kInvalid,
                      text(extent.bytes, " B at ", extent.offset, " are not inside a model of ", bytes, " B"));
      }
    }
  }
  Planner planner(bytes, group_bytes);
  for (const Extent& table : tables) planner.defer(table);
  for (const Extent& table : tables) planner.undefer(table);
  for (const Extent& extent : order) {
    planner.add(extent, false);
    if (group_bytes == 0) planner.close();
  }
  planner.add({0, bytes}, false);
  planner.close();
  planner.add({0, bytes}, true);
  return planner.take();
}

}  // namespace rouse::transfer
