#include "rouse/executor/heap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace rouse::executor {
namespace {

constexpr std::uint64_t kFreeBlock = 0x524f55534546524e;
// From here on huge pages are asked for: fewer misses of the address cache in large matrices.
constexpr std::size_t kHugeFrom = 4 << 20;
constexpr std::size_t kPage = 4096;

// Class 4·e + s holds blocks of up to 2^(e+6) · (1 + s/4) bytes.
std::uint32_t class_of(std::size_t bytes) {
  if (bytes <= 64) return 0;
  const unsigned exponent = std::bit_width(bytes - 1) - 1;  // 2^exponent < bytes, or equal to the power below
  const std::size_t low = std::size_t{1} << exponent;
  const std::size_t step = low / 4;
  const std::size_t quarter = (bytes - low + step - 1) / step;  // 1..4
  return static_cast<std::uint32_t>((exponent - 6) * 4 + quarter);
}

std::size_t bytes_of(std::uint32_t size_class) {
  const std::size_t low = std::size_t{64} << (size_class / 4);
  return low + low / 4 * (size_class % 4);
}

// With the header, such that the next block of a slab is aligned as well.
std::size_t whole_of(std::uint32_t size_class) {
  return (bytes_of(size_class) + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment + kBlockAlignment;
}

std::size_t mapped_of(std::uint32_t size_class) { return (whole_of(size_class) + kPage - 1) / kPage * kPage; }

}  // namespace

void free_block(void* data) {
  if (data == nullptr) return;
  BlockHeader* header = header_of(data);
  if (header->magic != kLiveBlock) {
    std::fprintf(stderr,
                 "rouse: a block at %p was freed that is not live: its memory was overwritten, or it was freed twice\n",
                 data);
    std::abort();
  }
  header->owner->give_back(data);
}

Heap::Handle Heap::make(std::uint64_t limit_bytes, bool clear) {
  return make(std::make_shared<Account>(limit_bytes), clear);
}

Heap::Handle Heap::make(std::shared_ptr<Account> account, bool clear) {
  const std::uint64_t limit = account->limit();
  Handle heap(new Heap(std::move(account), clear));
  heap->stats_.limit_bytes = limit;
  return heap;
}

bool Heap::take(std::size_t bytes) {
  if (account_->take(bytes)) return true;
  trim_locked();
  if (account_->take(bytes)) return true;
  if (account_->spare() == nullptr) return false;
  account_->spare()->trim();
  return account_->take(bytes);
}

void* Heap::map(std::size_t bytes) {
  if (!take(bytes)) return nullptr;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    account_->give(bytes);
    return nullptr;
  }
  // Advice: where the kernel does not take it, small pages serve as well.
  if (bytes >= kHugeFrom) (void)madvise(at, bytes, MADV_HUGEPAGE);
  stats_.mapped_bytes += bytes;
  return at;
}

void* Heap::cut_from_slab(std::size_t bytes) {
  if (slab_left_ < bytes) {
    std::size_t whole = kSlab;
    void* slab = map(whole);
    if (slab == nullptr) {
      // A small limit is used to its last page.
      whole = (bytes + kPage - 1) / kPage * kPage;
      slab = map(whole);
    }
    if (slab == nullptr) return nullptr;
    slabs_.push_back({slab, whole});
    slab_at_ = static_cast<std::byte*>(slab);
    slab_left_ = whole;
  }
  void* at = slab_at_;
  slab_at_ += bytes;
  slab_left_ -= bytes;
  return at;
}

Result<void*> Heap::allocate(std::size_t bytes) {
  if (bytes > kMaxBlockBytes)
    return Status(Code::kInvalid, "a block of " + std::to_string(bytes) + " bytes: none is that large");
  const std::uint32_t size_class = class_of(bytes);
  const std::size_t usable = bytes_of(size_class);
  const std::size_t whole = whole_of(size_class);
  std::lock_guard lock(mutex_);
  void* at;
  if (!free_[size_class].empty()) {
    at = free_[size_class].back();
    free_[size_class].pop_back();
    ++stats_.reused;
  } else {
    at = whole <= kSmall ? cut_from_slab(whole) : map(mapped_of(size_class));
    if (at == nullptr)
      return Status(Code::kExhausted,
                    "no room for a block of " + std::to_string(bytes) + " bytes: " + std::to_string(stats_.live_bytes) +
                        " are in use and " + std::to_string(account_->held()) + " held, of at most " +
                        std::to_string(account_->limit()) + " beside the weights; " + kGiveMore);
    ++stats_.fresh;
  }
  *static_cast<BlockHeader*>(at) = {kLiveBlock, this, usable, size_class, 0, nullptr};
  void* data = static_cast<std::byte*>(at) + kBlockAlignment;
  if (clear_) std::memset(data, 0, usable);
  ++live_blocks_;
  stats_.live_bytes += usable;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
  return data;
}

void Heap::give_back(void* data) {
  BlockHeader* header = header_of(data);
  bool last;
  {
    std::lock_guard lock(mutex_);
    header->magic = kFreeBlock;
    stats_.live_bytes -= header->bytes;
    free_[header->size_class].push_back(header);
    --live_blocks_;
    last = closed_ && live_blocks_ == 0;
  }
  if (last) delete this;
}

void Heap::trim() {
  std::lock_guard lock(mutex_);
  trim_locked();
}

void Heap::trim_locked() {
  for (std::uint32_t c = 0; c < kClasses; ++c) {
    if (whole_of(c) <= kSmall) continue;
    for (void* at : free_[c]) {
      munmap(at, mapped_of(c));
      stats_.mapped_bytes -= mapped_of(c);
      account_->give(mapped_of(c));
    }
    free_[c].clear();
  }
}

HeapStats Heap::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void Heap::close() {
  bool last;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    last = live_blocks_ == 0;
    if (!last) trim_locked();
  }
  if (last) delete this;
}

Heap::~Heap() {
  trim_locked();
  for (const Mapping& slab : slabs_) {
    munmap(slab.begin, slab.bytes);
    account_->give(slab.bytes);
  }
}

}  // namespace rouse::executor
