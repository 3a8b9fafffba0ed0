// Where each block of a replay lies in one arena, so that blocks that never live together share memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rouse/base/status.h"

namespace rouse::tape {

// Blocks lie on multiples of this many bytes: a cache line, and what vector instructions want.
inline constexpr std::uint64_t kPlanAlignment = 64;
// More blocks than this are not planned: placing them is quadratic.
inline constexpr std::size_t kMaxPlanned = 16384;
// An arena is never larger than this.
inline constexpr std::uint64_t kMaxArenaBytes = std::uint64_t{1} << 40;
// The offset of a block that has no place in the arena, as it outlives the replay.
inline constexpr std::uint64_t kUnplanned = ~std::uint64_t{0};

// One block: it lives from step `from` until before step `until`. Steps are counted over all allocations and frees.
struct Lifetime {
  std::uint64_t bytes = 0;
  std::uint32_t from = 0;
  std::uint32_t until = 0;
  bool operator==(const Lifetime&) const = default;
};

struct Plan {
  std::vector<std::uint64_t> offsets;  // one a block, in the order of the lifetimes
  std::uint64_t bytes = 0;             // of the arena
  bool operator==(const Plan&) const = default;
};

// `bytes` as a multiple of kPlanAlignment; a block of no bytes has a place, too.
std::uint64_t planned_bytes(std::uint64_t bytes);

// The least that any plan needs: the most bytes that live at one step.
std::uint64_t most_live(std::span<const Lifetime> blocks);

// Greedy by size (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, section 5.2):
// the largest block first, each into the smallest gap between those that live with it. INVALID where a block ends
// before it starts or is larger than an arena; EXHAUSTED where there are too many.
Result<Plan> make_plan(std::span<const Lifetime> blocks);

// Whether no two blocks that live together overlap and all lie inside; plans come out of files. Blocks at kUnplanned
// are left out. MISMATCH says which blocks.
Status check_plan(std::span<const Lifetime> blocks, const Plan& plan);

}  // namespace rouse::tape
