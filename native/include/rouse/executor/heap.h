// Memory of one session: blocks by size class, kept when freed, so that a warm session neither asks the kernel for
// memory nor takes page faults. No block ever passes to another session: the pages come fresh and go back.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "rouse/base/status.h"
#include "rouse/executor/account.h"

namespace rouse::executor {

// What vector instructions and PyTorch's kernels want.
inline constexpr std::size_t kBlockAlignment = 64;
// Larger blocks are refused before anything is computed with their size.
inline constexpr std::size_t kMaxBlockBytes = std::size_t{1} << 42;

struct HeapStats {
  std::uint64_t limit_bytes = 0;
  std::uint64_t mapped_bytes = 0;  // asked of the kernel, not given back
  std::uint64_t live_bytes = 0;    // in blocks that somebody holds, rounded up to their classes
  std::uint64_t peak_bytes = 0;    // the most that was live
  std::uint64_t reused = 0;        // blocks given from what was freed before
  std::uint64_t fresh = 0;         // blocks whose pages were new
  std::uint64_t planned = 0;       // blocks given at their planned place
  std::uint64_t unplanned = 0;     // blocks of planned replays that had to come from elsewhere
};

// Whoever gave a block. A block finds it through its header, on whatever thread it is freed.
class BlockOwner {
 public:
  virtual void give_back(void* data) = 0;

 protected:
  ~BlockOwner() = default;
};

// Lies in the 64 bytes before each block. PyTorch frees blocks by their address alone (oneDNN calls raw_deallocate), so
// the block has to know where it belongs.
struct BlockHeader {
  std::uint64_t magic;
  BlockOwner* owner;
  std::uint64_t bytes;       // that may be used
  std::uint32_t size_class;  // of a heap's block; unused in an arena
  std::uint32_t index;       // of an arena's or a log's block; unused in a heap
  BlockOwner* inner;         // of a log's block: the heap it came from
};
static_assert(sizeof(BlockHeader) <= kBlockAlignment);
inline constexpr std::uint64_t kLiveBlock = 0x524f5553454c4956;

inline BlockHeader* header_of(void* data) {
  return reinterpret_cast<BlockHeader*>(static_cast<std::byte*>(data) - kBlockAlignment);
}

// Gives a block back to whoever gave it; ends the process where it is no live block of ours, as memory is then already
// corrupt.
void free_block(void* data);

// A heap outlives its last block: it is made with make(), ended with close(), and gone when both have happened.
class Heap final : public BlockOwner {
 public:
  struct Closer {
    void operator()(Heap* heap) const { heap->close(); }
  };
  using Handle = std::unique_ptr<Heap, Closer>;

  // A heap that maps at most `limit_bytes`; `clear`: blocks are zeroed each time they are given out, for heaps that
  // serve several sessions.
  static Handle make(std::uint64_t limit_bytes, bool clear = false);
  // One whose memory is in an account that others share, as the arena of the same session.
  static Handle make(std::shared_ptr<Account> account, bool clear = false);

  // A block of at least `bytes`, at a multiple of kBlockAlignment. EXHAUSTED says how much is in use, and of how much.
  Result<void*> allocate(std::size_t bytes);
  void give_back(void* data) override;
  // Gives pages of freed blocks back to the kernel.
  void trim();
  HeapStats stats() const;
  const std::shared_ptr<Account>& account() const { return account_; }

 private:
  // 64 bytes and up, four classes for each doubling.
  static constexpr std::size_t kClasses = 160;
  // Blocks up to this many bytes, header included, are cut out of slabs.
  static constexpr std::size_t kSmall = 32 << 10;
  static constexpr std::size_t kSlab = 256 << 10;

  struct Mapping {
    void* begin;
    std::size_t bytes;
  };

  Heap(std::shared_ptr<Account> account, bool clear) : account_(std::move(account)), clear_(clear) {}
  ~Heap();
  void close();
  void* map(std::size_t bytes);
  // Takes them from the account, after what was only kept for later has gone back where that is needed.
  bool take(std::size_t bytes);
  void* cut_from_slab(std::size_t bytes);
  void trim_locked();

  const std::shared_ptr<Account> account_;
  const bool clear_;
  mutable std::mutex mutex_;
  std::array<std::vector<void*>, kClasses> free_;  // addresses of headers
  std::vector<Mapping> slabs_;
  std::byte* slab_at_ = nullptr;
  std::size_t slab_left_ = 0;
  std::uint64_t live_blocks_ = 0;
  bool closed_ = false;
  HeapStats stats_;
};

}  // namespace rouse::executor
