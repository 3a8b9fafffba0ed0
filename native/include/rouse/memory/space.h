// The ranges of models, of their state and of scratch on one device: addresses, the chunks under them, and the account.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "rouse/device/device.h"
#include "rouse/memory/chunk_pool.h"

namespace rouse::memory {

enum class Region : uint8_t { kModel, kState, kScratch };

struct RangeInfo {
  uint64_t address = 0;
  uint64_t bytes = 0;  // rounded up to the device's granularity
  Region region = Region::kModel;
  bool mapped = false;
};

// Thread-safe, except that nobody may use a range that is being released.
class Space {
 public:
  static constexpr size_t kMaxRanges = 16384;

  // `device` outlives the space. Chunks are made in these sizes and in the device's granularity.
  explicit Space(device::Device& device, std::vector<uint64_t> chunk_bytes = {32u << 20, 8u << 20});
  ~Space();
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  // Takes a range of addresses and the physical memory for it: all or nothing. kMismatch where the addresses are not to
  // be had, kExhausted where the memory is not.
  Status reserve(uint64_t address, uint64_t bytes, Region region);
  // Puts the memory under the range. It holds whatever was in it, as another model's weights: whoever lets anybody read
  // a part overwrites it first. On failure nothing is mapped and the range is still reserved.
  Status map(uint64_t address);
  // Gives addresses and memory back, mapped or not.
  Status release(uint64_t address);

  std::vector<RangeInfo> ranges() const;
  // Kept chunks count as free.
  device::Usage usage() const;
  // Whether the account, the ranges and the device agree. Holds whenever no call is in progress.
  Status check() const;
  // Gives kept chunks back to the device.
  Status trim();
  device::Device& device() { return device_; }

 private:
  struct Range {
    RangeInfo info;
    std::vector<Chunk> chunks;
  };
  Status map_chunks(const Range& range);
  // Unmaps the first `count` chunks.
  Status unmap_chunks(const Range& range, size_t count);
  Result<Range*> find(uint64_t address);
  device::Usage usage_locked() const;

  device::Device& device_;
  mutable std::mutex lock_;
  ChunkPool pool_;
  std::map<uint64_t, Range> ranges_;
};

}  // namespace rouse::memory
