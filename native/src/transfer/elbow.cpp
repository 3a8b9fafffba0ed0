#include "rouse/transfer/elbow.h"

#include <algorithm>
#include <chrono>

#include "rouse/base/text.h"

namespace rouse::transfer {

namespace {

using Clock = std::chrono::steady_clock;

// A copy that does not end within this is no measurement.
constexpr auto kPatience = std::chrono::seconds(60);

Result<double> copy_seconds(device::Stream& stream, uint64_t to, const char* from, uint64_t bytes, uint64_t group) {
  const auto started = Clock::now();
  for (uint64_t done = 0; done < bytes; done += group) {
    ROUSE_RETURN_IF_ERROR(stream.copy_in(to + done, from + done, std::min(group, bytes - done)));
    auto event = stream.record();
    if (!event.ok()) return event.status();
    ROUSE_RETURN_IF_ERROR(event.value()->wait(started + kPatience));
  }
  return std::chrono::duration<double>(Clock::now() - started).count();
}

}  // namespace

uint64_t elbow(std::span<const Point> curve, double share) {
  double fastest = 0;
  for (const Point& point : curve) fastest = std::max(fastest, point.bytes_per_second);
  uint64_t best = 0;
  for (const Point& point : curve) {
    if (point.bytes_per_second >= share * fastest && (best == 0 || point.group_bytes < best)) best = point.group_bytes;
  }
  return best;
}

Result<std::vector<Point>> measure_curve(device::Device& device, uint64_t to, const void* from, uint64_t bytes,
                                         std::span<const uint64_t> sizes, int rounds) {
  if (bytes == 0 || rounds < 1 || rounds > 1000 || sizes.size() > 64) {
    return Status(Code::kInvalid, text("a throughput curve of ", bytes, " B, ", rounds, " rounds, ", sizes.size(),
                                       " sizes: 1 to 1000 rounds and up to 64 sizes are measured"));
  }
  auto stream = device.make_stream();
  if (!stream.ok()) return stream.status();
  std::vector<std::vector<double>> seconds(sizes.size());
  // Interleaved, so that what else the machine does meets every size.
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] == 0) return Status(Code::kInvalid, "a group of 0 B");
      Result<double> took = copy_seconds(*stream.value(), to, static_cast<const char*>(from), bytes, sizes[i]);
      if (!took.ok()) return took.status();
      seconds[i].push_back(took.value());
    }
  }
  std::vector<Point> curve;
  for (size_t i = 0; i < sizes.size(); ++i) {
    curve.push_back({sizes[i], static_cast<double>(bytes) / *std::min_element(seconds[i].begin(), seconds[i].end())});
  }
  return curve;
}

}  // namespace rouse::transfer
