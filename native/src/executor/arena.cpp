#include "rouse/executor/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <string>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace rouse::executor {
namespace {

constexpr std::uint64_t kHuge = 2 << 20;
constexpr std::uint64_t kPage = 4096;
// Pages of an arena that are taken beforehand; zeroing more would hold up who waits.
constexpr std::uint64_t kPopulated = 2 << 20;

}  // namespace

Result<Layout> Layout::make(std::span<const tape::Lifetime> blocks, const tape::Plan& plan) {
  std::vector<tape::Lifetime> whole(blocks.begin(), blocks.end());
  for (tape::Lifetime& block : whole) {
    if (block.bytes > tape::kMaxArenaBytes) return Status(Code::kInvalid, "a planned block larger than any arena");
    block.bytes = arena_bytes(block.bytes);
  }
  ROUSE_RETURN_IF_ERROR(tape::check_plan(whole, plan));
  Layout layout;
  layout.bytes_ = plan.bytes;
  // Who took each place last, by where it begins: {end, block}.
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint32_t>> last;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const auto first = static_cast<std::uint32_t>(layout.befores_.size());
    const std::uint64_t begin = plan.offsets[i];
    layout.blocks_.push_back({begin, blocks[i].bytes, first, 0});
    if (begin == tape::kUnplanned) continue;
    const std::uint64_t end = begin + whole[i].bytes;
    auto place = last.lower_bound(begin);
    if (place != last.begin() && std::prev(place)->second.first > begin) --place;
    while (place != last.end() && place->first < end) {
      const auto [other_begin, other] = *place;
      layout.befores_.push_back(other.second);
      place = last.erase(place);
      if (other_begin < begin) last.emplace(other_begin, std::pair(begin, other.second));
      if (other.first > end) place = last.emplace(end, std::pair(other.first, other.second)).first;
    }
    last.emplace(begin, std::pair(end, static_cast<std::uint32_t>(i)));
    layout.blocks_.back().befores = static_cast<std::uint32_t>(layout.befores_.size()) - first;
  }
  return layout;
}

Arena::Handle Arena::make() { return Handle(new Arena); }

Status Arena::begin(const Layout& layout, const std::shared_ptr<Account>& account) {
  layout_ = nullptr;
  if (holders_.load(std::memory_order_acquire) != 1)
    return Status(Code::kRefused, "blocks of an earlier replay still live in the arena");
  if (layout.bytes() > mapped_) {
    unmap();
    // A small one takes no more than it needs: functions that sleep have one each.
    const std::uint64_t granule = layout.bytes() < kHuge ? kPage : kHuge;
    const std::uint64_t bytes = (layout.bytes() + granule - 1) / granule * granule;
    const auto refused = [&] { return Status(Code::kExhausted, "no memory for an arena of " + std::to_string(bytes)); };
    if (account && !account->take(bytes)) return refused();
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
      if (account) account->give(bytes);
      return refused();
    }
    // Advice: where the kernel does not take it, small pages serve as well.
    if (bytes >= kHuge) (void)madvise(at, bytes, MADV_HUGEPAGE);
    base_ = static_cast<std::byte*>(at);
    mapped_ = bytes;
    account_ = account;
    if (account_) account_->set_spare(this);
  }
  if (live_.size() < layout.size()) live_ = std::vector<std::atomic<bool>>(layout.size());
  layout_ = &layout;
  at_ = 0;
  return {};
}

Status Arena::prepare(const Layout& layout, const std::shared_ptr<Account>& account) {
  ROUSE_RETURN_IF_ERROR(begin(layout, account));
  layout_ = nullptr;
  // Advice: kernels before 5.14 do not know it, and the replay takes the pages then.
  (void)madvise(base_, std::min(layout.bytes(), kPopulated), MADV_POPULATE_WRITE);
  return {};
}

void* Arena::next(std::size_t bytes) {
  if (layout_ == nullptr) return nullptr;
  if (at_ >= layout_->blocks_.size()) {
    layout_ = nullptr;
    return nullptr;
  }
  const auto index = static_cast<std::uint32_t>(at_++);
  const Layout::Block& block = layout_->blocks_[index];
  const std::uint32_t* before = layout_->befores_.data() + block.first_before;
  const bool taken = std::any_of(before, before + block.befores,
                                 [&](std::uint32_t other) { return live_[other].load(std::memory_order_acquire); });
  if (block.bytes != bytes || taken) {
    layout_ = nullptr;
    return nullptr;
  }
  if (block.offset == tape::kUnplanned) return nullptr;
  live_[index].store(true, std::memory_order_relaxed);
  holders_.fetch_add(1, std::memory_order_relaxed);
  std::byte* at = base_ + block.offset;
  *reinterpret_cast<BlockHeader*>(at) = {kLiveBlock, this, bytes, 0, index, nullptr};
  return at + kBlockAlignment;
}

bool Arena::finish() {
  const bool held = layout_ != nullptr;
  layout_ = nullptr;
  return held;
}

void Arena::give_back(void* data) {
  BlockHeader* header = header_of(data);
  header->magic = 0;
  live_[header->index].store(false, std::memory_order_release);
  if (holders_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void Arena::trim() {
  if (layout_ == nullptr && holders_.load(std::memory_order_acquire) == 1) unmap();
}

void Arena::unmap() {
  if (base_ != nullptr) munmap(base_, mapped_);
  if (account_) {
    account_->give(mapped_);
    if (account_->spare() == this) account_->set_spare(nullptr);
    account_.reset();
  }
  base_ = nullptr;
  mapped_ = 0;
}

void Arena::close() {
  if (holders_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

Arena::~Arena() { unmap(); }

}  // namespace rouse::executor
