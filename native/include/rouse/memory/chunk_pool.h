// Physical chunks of several sizes, kept when they are given back: making one costs a GPU's driver far more than
// mapping one.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "rouse/device/device.h"

namespace rouse::memory {

struct Chunk {
  device::ChunkId id;
  uint64_t bytes = 0;
};

// Not thread-safe.
class ChunkPool {
 public:
  // Sizes to make chunks in, all multiples of the device's granularity; the smallest is the granularity itself,
  // whatever is given. `device` outlives the pool.
  ChunkPool(device::Device& device, std::vector<uint64_t> sizes);
  ~ChunkPool();
  ChunkPool(const ChunkPool&) = delete;
  ChunkPool& operator=(const ChunkPool&) = delete;

  // Chunks of `bytes` together (a multiple of the granularity), the largest first. kExhausted: then none is taken.
  Result<std::vector<Chunk>> take(uint64_t bytes);
  // Gives unmapped chunks back.
  void give(const std::vector<Chunk>& chunks);
  // Gives what is kept back to the device.
  Status trim();
  uint64_t kept_bytes() const { return kept_bytes_; }

 private:
  // A chunk of that size: a kept one, or a new one where the device has room, else kExhausted.
  Result<Chunk> take_one(uint64_t size);
  // Destroys one kept chunk, the largest; false where none is kept.
  Result<bool> drop_one();

  device::Device& device_;
  std::vector<uint64_t> sizes_;  // the largest first
  std::map<uint64_t, std::vector<Chunk>> kept_;
  uint64_t kept_bytes_ = 0;
};

}  // namespace rouse::memory
