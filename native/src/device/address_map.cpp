#include "address_map.h"

#include "rouse/base/text.h"

namespace rouse::device {

namespace {

// Addresses that user space has on every machine; beyond, sums could wrap.
constexpr uint64_t kAddressEnd = uint64_t{1} << 47;

// The entry of start → bytes that overlaps [address, address + bytes), or end().
auto overlap(const std::map<uint64_t, uint64_t>& map, uint64_t address, uint64_t bytes) {
  auto next = map.lower_bound(address + bytes);
  if (next == map.begin()) return map.end();
  --next;
  return next->first + next->second > address ? next : map.end();
}

}  // namespace

Status AddressMap::check_reserve(uint64_t address, uint64_t bytes) const {
  if (address == 0 || address % granularity_ || bytes == 0 || bytes % granularity_ || address >= kAddressEnd ||
      bytes > kAddressEnd - address) {
    return Status(Code::kInvalid, text("a range of ", bytes, " B at ", Hex{address}, ": both are multiples of ",
                                       granularity_, " above 0, below ", Hex{kAddressEnd}));
  }
  if (const auto other = overlap(ranges_, address, bytes); other != ranges_.end()) {
    return Status(Code::kMismatch, text("a range of ", bytes, " B at ", Hex{address}, " overlaps the one at ",
                                        Hex{other->first}, "; the control plane gave one address twice"));
  }
  return {};
}

Result<uint64_t> AddressMap::check_release(uint64_t address) const {
  const auto range = ranges_.find(address);
  if (range == ranges_.end()) return Status(Code::kNotFound, text("no range starts at ", Hex{address}));
  if (overlap(mappings_, range->first, range->second) != mappings_.end()) {
    return Status(Code::kRefused, text("the range at ", Hex{address}, " has memory mapped in it; unmap it first"));
  }
  return range->second;
}

Status AddressMap::check_create(uint64_t bytes) const {
  if (bytes == 0 || bytes % granularity_) {
    return Status(Code::kInvalid, text("a chunk of ", bytes, " B: it is a multiple of ", granularity_, " above 0"));
  }
  if (bytes > capacity_ - created_) {
    return Status(Code::kExhausted, text("a chunk of ", bytes, " B, and ", capacity_ - created_, " of ", capacity_,
                                         " B of the device are free; evict a model first"));
  }
  return {};
}

ChunkId AddressMap::created(uint64_t bytes) {
  chunks_[++last_] = Chunk{bytes, 0};
  created_ += bytes;
  return ChunkId{last_};
}

const AddressMap::Chunk* AddressMap::find(ChunkId chunk) const {
  const auto found = chunks_.find(chunk.number);
  return found == chunks_.end() ? nullptr : &found->second;
}

Status AddressMap::check_destroy(ChunkId chunk) const {
  const Chunk* found = find(chunk);
  if (!found) return Status(Code::kNotFound, text("there is no chunk ", chunk.number));
  if (found->address) {
    return Status(Code::kRefused, text("chunk ", chunk.number, " is mapped at ", Hex{found->address}));
  }
  return {};
}

void AddressMap::destroyed(ChunkId chunk) {
  created_ -= chunks_.at(chunk.number).bytes;
  chunks_.erase(chunk.number);
}

Status AddressMap::check_map(ChunkId chunk, uint64_t address) const {
  const Chunk* found = find(chunk);
  if (!found) return Status(Code::kNotFound, text("there is no chunk ", chunk.number));
  if (found->address) {
    return Status(Code::kRefused, text("chunk ", chunk.number, " is mapped at ", Hex{found->address}, " already"));
  }
  if (address % granularity_ || address >= kAddressEnd) {
    return Status(Code::kInvalid, text(Hex{address}, " is no multiple of ", granularity_));
  }
  const auto range = overlap(ranges_, address, 1);
  if (range == ranges_.end() || address + found->bytes > range->first + range->second) {
    return Status(Code::kInvalid, text(found->bytes, " B at ", Hex{address}, " are not inside one reserved range"));
  }
  if (const auto other = overlap(mappings_, address, found->bytes); other != mappings_.end()) {
    return Status(Code::kRefused, text("a chunk is mapped at ", Hex{other->first}, " already"));
  }
  return {};
}

void AddressMap::mapped(ChunkId chunk, uint64_t address) {
  Chunk& found = chunks_.at(chunk.number);
  found.address = address;
  mappings_[address] = found.bytes;
  mapped_ += found.bytes;
}

Result<uint64_t> AddressMap::check_unmap(ChunkId chunk) const {
  const Chunk* found = find(chunk);
  if (!found) return Status(Code::kNotFound, text("there is no chunk ", chunk.number));
  if (!found->address) return Status(Code::kRefused, text("chunk ", chunk.number, " is mapped nowhere"));
  return found->address;
}

void AddressMap::unmapped(ChunkId chunk) {
  Chunk& found = chunks_.at(chunk.number);
  mappings_.erase(found.address);
  mapped_ -= found.bytes;
  found.address = 0;
}

Status AddressMap::check_mapped(uint64_t address, uint64_t bytes) const {
  if (address >= kAddressEnd || bytes > kAddressEnd - address) {
    return Status(Code::kInvalid, text(bytes, " B at ", Hex{address}, " are no addresses of a device"));
  }
  uint64_t at = address;
  while (at < address + bytes) {
    const auto mapping = overlap(mappings_, at, 1);
    if (mapping == mappings_.end()) {
      return Status(Code::kInvalid, text("of ", bytes, " B at ", Hex{address}, " nothing is mapped at ", Hex{at}));
    }
    at = mapping->first + mapping->second;
  }
  return {};
}

Usage AddressMap::usage() const { return Usage{capacity_, capacity_ - created_, created_ - mapped_, mapped_}; }

}  // namespace rouse::device
