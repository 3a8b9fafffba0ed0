#include "rouse/memory/space.h"

#include "rouse/base/text.h"

namespace rouse::memory {

Space::Space(device::Device& device, std::vector<uint64_t> chunk_bytes)
    : device_(device), pool_(device, std::move(chunk_bytes)) {}

Space::~Space() {
  std::lock_guard guard(lock_);
  for (const auto& [address, range] : ranges_) {
    if (range.info.mapped && !unmap_chunks(range, range.chunks.size()).ok()) continue;
    pool_.give(range.chunks);
    static_cast<void>(device_.release(address));
  }
}

Result<Space::Range*> Space::find(uint64_t address) {
  const auto found = ranges_.find(address);
  if (found == ranges_.end()) return Status(Code::kNotFound, text("no range of this device starts at ", Hex{address}));
  return &found->second;
}

Status Space::reserve(uint64_t address, uint64_t bytes, Region region) {
  const uint64_t unit = device_.granularity();
  if (bytes == 0 || bytes > device_.usage().capacity) {
    return Status(bytes ? Code::kExhausted : Code::kInvalid,
                  text("a range of ", bytes, " B on a device of ", device_.usage().capacity, " B"));
  }
  const uint64_t whole = (bytes + unit - 1) / unit * unit;
  std::lock_guard guard(lock_);
  if (ranges_.size() >= kMaxRanges) {
    return Status(Code::kExhausted, text("this device has ", kMaxRanges, " ranges already; evict a model first"));
  }
  ROUSE_RETURN_IF_ERROR(device_.reserve(address, whole));
  Result<std::vector<Chunk>> chunks = pool_.take(whole);
  if (!chunks.ok()) {
    ROUSE_RETURN_IF_ERROR(device_.release(address));
    return chunks.status();
  }
  ranges_[address] = Range{{address, whole, region, false}, std::move(chunks).value()};
  return {};
}

Status Space::map_chunks(const Range& range) {
  uint64_t at = range.info.address;
  for (size_t i = 0; i < range.chunks.size(); ++i) {
    if (Status status = device_.map(range.chunks[i].id, at); !status.ok()) {
      ROUSE_RETURN_IF_ERROR(unmap_chunks(range, i));
      return status;
    }
    at += range.chunks[i].bytes;
  }
  return {};
}

Status Space::unmap_chunks(const Range& range, size_t count) {
  for (size_t i = 0; i < count; ++i) ROUSE_RETURN_IF_ERROR(device_.unmap(range.chunks[i].id));
  return {};
}

Status Space::map(uint64_t address) {
  std::lock_guard guard(lock_);
  Result<Range*> range = find(address);
  if (!range.ok()) return range.status();
  if (range.value()->info.mapped)
    return Status(Code::kRefused, text("the range at ", Hex{address}, " is mapped already"));
  ROUSE_RETURN_IF_ERROR(map_chunks(*range.value()));
  range.value()->info.mapped = true;
  return {};
}

Status Space::release(uint64_t address) {
  std::lock_guard guard(lock_);
  Result<Range*> range = find(address);
  if (!range.ok()) return range.status();
  if (range.value()->info.mapped) {
    ROUSE_RETURN_IF_ERROR(unmap_chunks(*range.value(), range.value()->chunks.size()));
    range.value()->info.mapped = false;
  }
  ROUSE_RETURN_IF_ERROR(device_.release(address));
  pool_.give(range.value()->chunks);
  ranges_.erase(address);
  return {};
}

std::vector<RangeInfo> Space::ranges() const {
  std::lock_guard guard(lock_);
  std::vector<RangeInfo> found;
  found.reserve(ranges_.size());
  for (const auto& [address, range] : ranges_) found.push_back(range.info);
  return found;
}

device::Usage Space::usage_locked() const {
  device::Usage usage{device_.usage().capacity, 0, 0, 0};
  for (const auto& [address, range] : ranges_) (range.info.mapped ? usage.mapped : usage.reserved) += range.info.bytes;
  usage.free = usage.capacity - usage.reserved - usage.mapped;
  return usage;
}

device::Usage Space::usage() const {
  std::lock_guard guard(lock_);
  return usage_locked();
}

Status Space::check() const {
  std::lock_guard guard(lock_);
  const device::Usage ours = usage_locked(), theirs = device_.usage();
  if (!ours.adds_up() || !theirs.adds_up() || ours.mapped != theirs.mapped ||
      ours.reserved + pool_.kept_bytes() != theirs.reserved) {
    return Status(Code::kFailed,
                  text("the device's account does not add up: ranges have ", ours.mapped, " B mapped and ",
                       ours.reserved, " B reserved, ", pool_.kept_bytes(),
                       " B are kept, and the device "
                       "says ",
                       theirs.mapped, ", ", theirs.reserved, " and ", theirs.free, " B free of ", theirs.capacity));
  }
  return {};
}

Status Space::trim() {
  std::lock_guard guard(lock_);
  return pool_.trim();
}

}  // namespace rouse::memory
