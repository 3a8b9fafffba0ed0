// Memory that only the stand-in's kernels reach: the pages at its addresses may not be touched, so whoever takes an
// address of the device for one of this process ends it by a fault. Kernels see the same pages elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace rouse::accelerator {

class Memory {
 public:
  static Memory& get();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // An address of the device at a multiple of 64, filled with garbage; null where there is no room.
  void* allocate(std::size_t bytes);
  void free(void* address);
  // Where kernels find what lies at an address of the device.
  std::byte* inside(const void* address) const;
  std::size_t live_blocks() const;

  // Ranges of addresses for weights. False where it is not free.
  bool add_range(std::uint64_t address, std::uint64_t bytes);
  void remove_range(std::uint64_t address);
  // Puts a file's pages under a part of a range; -1: takes them away.
  void fill(std::uint64_t address, std::uint64_t bytes, int file);

 private:
  Memory();

  std::byte* outside_ = nullptr;
  std::byte* inside_ = nullptr;
  mutable std::mutex lock_;
  std::map<std::size_t, std::size_t> free_, used_;  // bytes by offset
  struct Range {
    std::uint64_t bytes;
    std::byte* inside;
  };
  std::map<std::uint64_t, Range> ranges_;
};

}  // namespace rouse::accelerator
