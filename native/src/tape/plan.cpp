#include "rouse/tape/plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

namespace rouse::tape {
namespace {

struct Span {
  std::uint64_t begin, end;
};

Status check_lifetimes(std::span<const Lifetime> blocks) {
  if (blocks.size() > kMaxPlanned)
    return Status(Code::kExhausted, "a plan of " + std::to_string(blocks.size()) + " blocks: at most " +
                                        std::to_string(kMaxPlanned) + " are planned");
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i].until <= blocks[i].from || blocks[i].bytes > kMaxArenaBytes)
      return Status(Code::kInvalid, "block " + std::to_string(i) + " of a plan has " + std::to_string(blocks[i].bytes) +
                                        " bytes from step " + std::to_string(blocks[i].from) + " until " +
                                        std::to_string(blocks[i].until));
  return {};
}

// The start of the smallest gap between `taken` (sorted by begin) that holds `bytes`; their end where none does.
std::uint64_t best_gap(const std::vector<Span>& taken, std::uint64_t bytes) {
  std::uint64_t best = kUnplanned, best_size = kUnplanned, end = 0;
  for (const Span& span : taken) {
    if (span.begin > end && span.begin - end >= bytes && span.begin - end < best_size) {
      best = end;
      best_size = span.begin - end;
    }
    end = std::max(end, span.end);
  }
  return best == kUnplanned ? end : best;
}

// (step, false for an end and true for a beginning, block): ends come first, as a block lives until before its end.
std::vector<std::pair<std::pair<std::uint32_t, bool>, std::size_t>> events_of(std::span<const Lifetime> blocks) {
  std::vector<std::pair<std::pair<std::uint32_t, bool>, std::size_t>> events;
  events.reserve(blocks.size() * 2);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    events.push_back({{blocks[i].from, true}, i});
    events.push_back({{blocks[i].until, false}, i});
  }
  std::sort(events.begin(), events.end());
  return events;
}

}  // namespace

std::uint64_t planned_bytes(std::uint64_t bytes) {
  return std::max<std::uint64_t>(bytes + kPlanAlignment - 1, kPlanAlignment) / kPlanAlignment * kPlanAlignment;
}

std::uint64_t most_live(std::span<const Lifetime> blocks) {
  std::uint64_t live = 0, most = 0;
  for (const auto& [when, block] : events_of(blocks)) {
    if (when.second)
      live += planned_bytes(blocks[block].bytes);
    else
      live -= planned_bytes(blocks[block].bytes);
    most = std::max(most, live);
  }
  return most;
}

Result<Plan> make_plan(std::span<const Lifetime> blocks) {
  ROUSE_RETURN_IF_ERROR(check_lifetimes(blocks));
  std::vector<std::size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  Plan plan{std::vector<std::uint64_t>(blocks.size()), 0};
  std::vector<std::size_t> placed;  // kept sorted by offset, so that gaps are read in one pass
  std::vector<Span> taken;
  for (std::size_t block : order) {
    const Lifetime& life = blocks[block];
    taken.clear();
    for (std::size_t other : placed)
      if (blocks[other].from < life.until && life.from < blocks[other].until)
        taken.push_back({plan.offsets[other], plan.offsets[other] + planned_bytes(blocks[other].bytes)});
    const std::uint64_t offset = best_gap(taken, planned_bytes(life.bytes));
    plan.offsets[block] = offset;
    plan.bytes = std::max(plan.bytes, offset + planned_bytes(life.bytes));
    placed.insert(std::upper_bound(placed.begin(), placed.end(), offset,
                                   [&](std::uint64_t at, std::size_t other) { return at < plan.offsets[other]; }),
                  block);
  }
  return plan;
}

Status check_plan(std::span<const Lifetime> blocks, const Plan& plan) {
  ROUSE_RETURN_IF_ERROR(check_lifetimes(blocks));
  if (plan.offsets.size() != blocks.size())
    return Status(Code::kMismatch, "a plan of " + std::to_string(plan.offsets.size()) + " offsets for " +
                                       std::to_string(blocks.size()) + " blocks");
  if (plan.bytes > kMaxArenaBytes) return Status(Code::kMismatch, "a plan's arena is larger than any may be");
  std::map<std::uint64_t, std::size_t> live;  // by offset; none overlap, so only neighbours can
  for (const auto& [when, block] : events_of(blocks)) {
    const std::uint64_t at = plan.offsets[block];
    if (at == kUnplanned) continue;
    if (!when.second) {
      live.erase(at);
      continue;
    }
    const std::uint64_t size = planned_bytes(blocks[block].bytes);
    if (at % kPlanAlignment || at > plan.bytes || size > plan.bytes - at)
      return Status(Code::kMismatch, "block " + std::to_string(block) + " of a plan lies outside of its arena");
    const auto next = live.lower_bound(at);
    std::size_t other = blocks.size();
    if (next != live.end() && next->first < at + size) other = next->second;
    if (next != live.begin()) {
      const auto before = std::prev(next);
      if (before->first + planned_bytes(blocks[before->second].bytes) > at) other = before->second;
    }
    if (other != blocks.size())
      return Status(Code::kMismatch, "blocks " + std::to_string(other) + " and " + std::to_string(block) +
                                         " of a plan live together and overlap");
    live.emplace(at, block);
  }
  return {};
}

}  // namespace rouse::tape
