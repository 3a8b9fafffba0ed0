// How large the groups of a copy should be: measured once a device, chosen by a pure function.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rouse/base/status.h"
#include "rouse/device/device.h"

namespace rouse::transfer {

struct Point {
  uint64_t group_bytes = 0;
  double bytes_per_second = 0;
};

// The smallest group that copies at `share` of the fastest (Torpor, section on pipelined swapping: beyond the elbow of
// the throughput curve larger groups only make the first operation wait). 0 where there is no point.
uint64_t elbow(std::span<const Point> curve, double share = 0.95);

// Copies [from, from + bytes) to a mapped range in groups of each size, an event after each group, as a swap does;
// the fastest of `rounds`, since others can only slow a copy down. Takes about sizes × rounds × bytes / bandwidth.
Result<std::vector<Point>> measure_curve(device::Device& device, uint64_t to, const void* from, uint64_t bytes,
                                         std::span<const uint64_t> sizes, int rounds);

}  // namespace rouse::transfer
