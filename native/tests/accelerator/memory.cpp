#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "test_base.h"

namespace rouse::accelerator {
namespace {

// The largest model of the scenario redirect, and what it computes with; pages that nobody uses take no memory.
constexpr std::size_t kBytes = std::size_t{1} << 30;
constexpr std::size_t kAlignment = 64;
// Among models' addresses, so that tests can put weights there, and behind those of tests of devices.
constexpr std::uintptr_t kBase = device::kTestBase + 0x10'0000'0000;
// Neither memory that is new nor memory that was freed holds what anybody could take for a number of theirs.
constexpr int kFresh = 0xcd, kFreed = 0xdd;

std::byte* map(std::uintptr_t at, int protection, int file) {
  void* const got = mmap(reinterpret_cast<void*>(at), kBytes, protection,
                         MAP_SHARED | MAP_NORESERVE | (at ? MAP_FIXED_NOREPLACE : 0), file, 0);
  if (got == MAP_FAILED) {
    std::perror("the stand-in's memory cannot be mapped");
    std::abort();
  }
  return static_cast<std::byte*>(got);
}

}  // namespace

Memory& Memory::get() {
  static auto* memory = new Memory();
  return *memory;
}

Memory::Memory() {
  const int file = memfd_create("accelerator", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, kBytes) != 0) {
    std::perror("the stand-in has no memory");
    std::abort();
  }
  outside_ = map(kBase, PROT_NONE, file);
  inside_ = map(0, PROT_READ | PROT_WRITE, file);
  close(file);
  free_[0] = kBytes;
}

void* Memory::allocate(std::size_t bytes) {
  const std::size_t wanted = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (wanted == 0 || wanted < bytes) return nullptr;
  const std::lock_guard guard(lock_);
  for (auto block = free_.begin(); block != free_.end(); ++block) {
    const auto [offset, has] = *block;
    if (has < wanted) continue;
    free_.erase(block);
    if (has > wanted) free_[offset + wanted] = has - wanted;
    used_[offset] = wanted;
    std::memset(inside_ + offset, kFresh, wanted);
    return outside_ + offset;
  }
  return nullptr;
}

void Memory::free(void* address) {
  if (address == nullptr) return;
  const std::lock_guard guard(lock_);
  const auto used = used_.find(static_cast<std::size_t>(static_cast<std::byte*>(address) - outside_));
  if (used == used_.end()) std::abort();
  auto [offset, bytes] = *used;
  used_.erase(used);
  std::memset(inside_ + offset, kFreed, bytes);
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + bytes) {
    bytes += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin() && std::prev(after)->first + std::prev(after)->second == offset) {
    std::prev(after)->second += bytes;
  } else {
    free_[offset] = bytes;
  }
}

std::byte* Memory::inside(const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  if (at == nullptr) return nullptr;
  if (at >= outside_ && at < outside_ + kBytes) return inside_ + (at - outside_);
  const auto number = reinterpret_cast<std::uint64_t>(at);
  const std::lock_guard guard(lock_);
  const auto after = ranges_.upper_bound(number);
  if (after == ranges_.begin()) std::abort();
  const auto& [base, range] = *std::prev(after);
  if (number - base >= range.bytes) std::abort();
  return range.inside + (number - base);
}

bool Memory::add_range(std::uint64_t address, std::uint64_t bytes) {
  void* const outside = mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (outside == MAP_FAILED) return false;
  void* const inside = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (inside == MAP_FAILED) std::abort();
  const std::lock_guard guard(lock_);
  ranges_[address] = {bytes, static_cast<std::byte*>(inside)};
  return true;
}

void Memory::remove_range(std::uint64_t address) {
  const std::lock_guard guard(lock_);
  const auto range = ranges_.find(address);
  if (range == ranges_.end()) std::abort();
  munmap(reinterpret_cast<void*>(address), range->second.bytes);
  munmap(range->second.inside, range->second.bytes);
  ranges_.erase(range);
}

void Memory::fill(std::uint64_t address, std::uint64_t bytes, int file) {
  std::byte* const at = inside(reinterpret_cast<const void*>(address));
  const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
  const int access = file < 0 ? PROT_NONE : PROT_READ | PROT_WRITE;
  if (mmap(at, bytes, access, flags | MAP_FIXED, file, 0) == MAP_FAILED) std::abort();
}

std::size_t Memory::live_blocks() const {
  const std::lock_guard guard(lock_);
  return used_.size();
}

}  // namespace rouse::accelerator
