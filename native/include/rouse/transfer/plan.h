// In which order and in which groups a model is copied. Pure: sizes in, extents out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rouse/base/status.h"
#include "rouse/transfer/residency.h"

namespace rouse::transfer {

inline constexpr size_t kMaxExtents = 1 << 20;
inline constexpr uint64_t kDefaultGroupBytes = 2 << 20;

// Every block of the model in exactly one extent. Group i is extents ends[i - 1] … ends[i] - 1.
struct Plan {
  std::vector<Extent> extents;  // on block boundaries; the model's last may be short
  std::vector<uint32_t> ends;
  uint64_t bytes = 0;
};

// Plans the copy of a model of `bytes`.
//
// `order`: what operations read, in the order of their first use (of a tape). A block that two of them share goes with
// the first. `tables`: what is read by rows: copied last, since a gather asks for the rows it needs. What neither names
// comes between. `group_bytes`: what is copied before anybody is told; 0: one group an extent of `order`, which is
// per-parameter pipelining. kInvalid: an extent outside the model, or more than kMaxExtents of them.
Result<Plan> plan_groups(uint64_t bytes, std::span<const Extent> order, std::span<const Extent> tables,
                         uint64_t group_bytes);

}  // namespace rouse::transfer
