#include "rouse/memory/chunk_pool.h"

#include <algorithm>
#include <functional>

#include "rouse/base/text.h"

namespace rouse::memory {

ChunkPool::ChunkPool(device::Device& device, std::vector<uint64_t> sizes) : device_(device), sizes_(std::move(sizes)) {
  const uint64_t least = device.granularity();
  std::erase_if(sizes_, [&](uint64_t size) { return size == 0 || size % least != 0; });
  sizes_.push_back(least);
  std::sort(sizes_.begin(), sizes_.end(), std::greater<>());
  sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
}

ChunkPool::~ChunkPool() { static_cast<void>(trim()); }  // The device that they belong to ends next.

Result<bool> ChunkPool::drop_one() {
  for (auto bin = kept_.rbegin(); bin != kept_.rend(); ++bin) {
    if (bin->second.empty()) continue;
    const Chunk chunk = bin->second.back();
    ROUSE_RETURN_IF_ERROR(device_.destroy(chunk.id));
    bin->second.pop_back();
    kept_bytes_ -= chunk.bytes;
    return true;
  }
  return false;
}

Status ChunkPool::trim() {
  while (true) {
    Result<bool> dropped = drop_one();
    if (!dropped.ok()) return dropped.status();
    if (!dropped.value()) return {};
  }
}

Result<Chunk> ChunkPool::take_one(uint64_t size) {
  if (auto bin = kept_.find(size); bin != kept_.end() && !bin->second.empty()) {
    const Chunk chunk = bin->second.back();
    bin->second.pop_back();
    kept_bytes_ -= chunk.bytes;
    return chunk;
  }
  auto id = device_.create(size);
  if (!id.ok()) return id.status();
  return Chunk{id.value(), size};
}

Result<std::vector<Chunk>> ChunkPool::take(uint64_t bytes) {
  const uint64_t least = sizes_.back();
  if (bytes == 0 || bytes % least != 0) {
    return Status(Code::kInvalid, text("chunks of ", bytes, " B together: that is no multiple of ", least, " above 0"));
  }
  std::vector<Chunk> taken;
  uint64_t left = bytes;
  size_t at = 0;
  while (left > 0) {
    if (sizes_[at] > left) {
      ++at;
      continue;
    }
    Result<Chunk> chunk = take_one(sizes_[at]);
    if (chunk.ok()) {
      left -= sizes_[at];
      taken.push_back(chunk.value());
      continue;
    }
    // The room may be there in other sizes: in smaller chunks that are kept, or in kept ones that have to be broken up.
    if (chunk.status().code() == Code::kExhausted) {
      if (at + 1 < sizes_.size()) {
        ++at;
        continue;
      }
      Result<bool> dropped = drop_one();
      if (dropped.ok() && dropped.value()) {
        at = 0;
        continue;
      }
    }
    give(taken);
    return chunk.status();
  }
  return taken;
}

void ChunkPool::give(const std::vector<Chunk>& chunks) {
  for (const Chunk& chunk : chunks) {
    kept_[chunk.bytes].push_back(chunk);
    kept_bytes_ += chunk.bytes;
  }
}

}  // namespace rouse::memory
