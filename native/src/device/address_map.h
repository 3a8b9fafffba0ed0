// Reserved ranges, chunks, and what is mapped where: the bookkeeping that both kinds of device share.
#pragma once

#include <cstdint>
#include <map>

#include "rouse/base/status.h"
#include "rouse/device/device.h"

namespace rouse::device {

// Not thread-safe. Each check says what to do instead of doing it; the caller then does it and notes that it did.
class AddressMap {
 public:
  AddressMap(uint64_t capacity, uint64_t granularity) : capacity_(capacity), granularity_(granularity) {}

  Status check_reserve(uint64_t address, uint64_t bytes) const;
  void reserved(uint64_t address, uint64_t bytes) { ranges_[address] = bytes; }
  // The bytes of the range that starts there, if it can be released.
  Result<uint64_t> check_release(uint64_t address) const;
  void released(uint64_t address) { ranges_.erase(address); }

  Status check_create(uint64_t bytes) const;
  ChunkId created(uint64_t bytes);
  Status check_destroy(ChunkId chunk) const;
  void destroyed(ChunkId chunk);

  Status check_map(ChunkId chunk, uint64_t address) const;
  void mapped(ChunkId chunk, uint64_t address);
  // Where the chunk is mapped.
  Result<uint64_t> check_unmap(ChunkId chunk) const;
  void unmapped(ChunkId chunk);

  // Whether all of [address, address + bytes) is mapped.
  Status check_mapped(uint64_t address, uint64_t bytes) const;
  uint64_t bytes_of(ChunkId chunk) const { return chunks_.at(chunk.number).bytes; }
  const std::map<uint64_t, uint64_t>& ranges() const { return ranges_; }
  Usage usage() const;

 private:
  struct Chunk {
    uint64_t bytes = 0;
    uint64_t address = 0;  // 0: mapped nowhere
  };
  const Chunk* find(ChunkId chunk) const;

  const uint64_t capacity_;
  const uint64_t granularity_;
  uint64_t created_ = 0;  // bytes
  uint64_t mapped_ = 0;   // bytes
  uint64_t last_ = 0;
  std::map<uint64_t, uint64_t> ranges_;    // start → bytes
  std::map<uint64_t, Chunk> chunks_;       // by number
  std::map<uint64_t, uint64_t> mappings_;  // start → bytes
};

}  // namespace rouse::device
