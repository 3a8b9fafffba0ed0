// One stretch of memory for the replays of one session, in which the n-th block of a replay lies at its planned offset.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rouse/base/status.h"
#include "rouse/executor/heap.h"
#include "rouse/tape/plan.h"

namespace rouse::executor {

// A plan made ready: for each block, those whose place it takes, so that "is this place free" is a few looks.
class Layout {
 public:
  // `blocks` and `plan` as check_plan agrees to; their sizes have room for a header (arena_bytes).
  static Result<Layout> make(std::span<const tape::Lifetime> blocks, const tape::Plan& plan);

  std::size_t size() const { return blocks_.size(); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  friend class Arena;
  struct Block {
    std::uint64_t offset, bytes;
    std::uint32_t first_before, befores;  // into befores_: the blocks whose place this one takes
  };
  std::vector<Block> blocks_;
  std::vector<std::uint32_t> befores_;
  std::uint64_t bytes_ = 0;
};

// Bytes in an arena of a block of `bytes`: with its header.
inline std::uint64_t arena_bytes(std::uint64_t bytes) { return tape::planned_bytes(bytes) + kBlockAlignment; }

// Never given to another session. Used by one thread at a time; blocks may be freed on any.
class Arena final : public BlockOwner, public Spare {
 public:
  struct Closer {
    void operator()(Arena* arena) const { arena->close(); }
  };
  using Handle = std::unique_ptr<Arena, Closer>;
  static Handle make();

  // Starts a replay. EXHAUSTED where memory is refused; REFUSED where blocks of an earlier replay still live here: then
  // this replay allocates elsewhere. The memory is in `account`, if there is one, whose spare it is.
  Status begin(const Layout& layout, const std::shared_ptr<Account>& account = nullptr);
  // Takes the memory of a first replay beforehand, and the pages of a small one.
  Status prepare(const Layout& layout, const std::shared_ptr<Account>& account = nullptr);
  // The next block, where its size is as planned and its place free; nullptr otherwise, and from then on until the next
  // begin(): a plan that does not fit at one place says nothing about the rest.
  void* next(std::size_t bytes);
  // Ends the replay. Whether every block since begin() was as planned.
  bool finish();
  void give_back(void* data) override;
  // Gives the pages back to the kernel, where nothing lives in them and no replay is under way.
  void trim() override;
  std::uint64_t mapped_bytes() const { return mapped_; }

 private:
  Arena() = default;
  ~Arena();
  void close();
  void unmap();

  const Layout* layout_ = nullptr;
  std::size_t at_ = 0;
  std::byte* base_ = nullptr;
  std::uint64_t mapped_ = 0;
  std::shared_ptr<Account> account_;  // that has `mapped_`
  std::vector<std::atomic<bool>> live_;
  // Live blocks, and one more for the handle: whoever takes it to zero ends the arena.
  std::atomic<std::uint64_t> holders_{1};
};

}  // namespace rouse::executor
