#include "piece_pool.h"

#include <sys/mman.h>

#include <algorithm>

#include "rouse/base/text.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace rouse::device {

namespace {

// DONTUNMAP: the addresses that the pages leave stay ours. Without it, another thread's mmap could land in the hole.
Status move_pages(char* from, char* to, uint64_t bytes) {
  if (mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) != MAP_FAILED) return {};
  const int error = errno;
  if (error == EINVAL) {
    return Status(Code::kUnsupported, "this kernel does not move pages between mappings (Linux 5.7 or newer does)");
  }
  return Status(Code::kExhausted, text("moving ", bytes, " B to ", static_cast<const void*>(to), ": ",
                                       errno_text(error), error == ENOMEM ? "; is vm.max_map_count too low?" : ""));
}

uint64_t pieces_of(const std::vector<Run>& runs) {
  uint64_t sum = 0;
  for (const Run& run : runs) sum += run.count;
  return sum;
}

}  // namespace

Result<std::unique_ptr<PiecePool>> PiecePool::make(uint64_t capacity) {
  if (capacity == 0 || capacity % kPieceBytes != 0) {
    return Status(Code::kInvalid,
                  text("a host device of ", capacity, " B: the capacity is a multiple of 2 MiB above 0"));
  }
  const uint64_t bytes = capacity + kPieceBytes;  // to find a boundary of 2 MiB in
  void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return Status(Code::kExhausted, text("no addresses for a host device of ", capacity, " B: ", errno_text()));
  }
  return std::unique_ptr<PiecePool>(new PiecePool(capacity, static_cast<char*>(mapping), bytes));
}

PiecePool::PiecePool(uint64_t capacity, char* mapping, uint64_t mapping_bytes)
    : mapping_(mapping),
      mapping_bytes_(mapping_bytes),
      base_(mapping + (kPieceBytes - reinterpret_cast<uintptr_t>(mapping) % kPieceBytes) % kPieceBytes),
      free_(capacity / kPieceBytes),
      taken_(free_),
      filled_(free_) {
  // Both are wishes: without huge pages moving costs the same, and computing a little more.
  madvise(base_, capacity, MADV_HUGEPAGE);
  madvise(base_, capacity, MADV_DONTDUMP);
}

PiecePool::~PiecePool() { munmap(mapping_, mapping_bytes_); }

Run PiecePool::find(uint64_t from, uint64_t most, bool filled) const {
  const uint64_t size = taken_.size();
  while (from < size && (taken_[from] || filled_[from] != filled)) ++from;
  uint64_t end = from;
  while (end < size && end - from < most && !taken_[end] && filled_[end] == filled) ++end;
  return Run{from, end - from};
}

Result<std::vector<Run>> PiecePool::take(uint64_t pieces) {
  if (pieces > free_) {
    return Status(Code::kExhausted, text((pieces * kPieceBytes) >> 20, " MiB are wanted and ",
                                         (free_ * kPieceBytes) >> 20, " MiB of the device are free"));
  }
  std::vector<Run> runs;
  uint64_t left = pieces;
  for (const bool filled : {true, false}) {
    for (Run run = find(0, left, filled); left > 0 && run.count > 0; run = find(run.first + run.count, left, filled)) {
      if (!filled) {
        if (Status status = fill(run); !status.ok()) {
          give(runs);
          return status;
        }
      }
      std::fill_n(taken_.begin() + static_cast<std::ptrdiff_t>(run.first), run.count, true);
      free_ -= run.count;
      left -= run.count;
      runs.push_back(run);
    }
  }
  return runs;
}

void PiecePool::give(const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    std::fill_n(taken_.begin() + static_cast<std::ptrdiff_t>(run.first), run.count, false);
  }
  free_ += pieces_of(runs);
}

Status PiecePool::fill(Run run) {
  char* const from = slot(run.first);
  const uint64_t bytes = run.count * kPieceBytes;
  if (madvise(from, bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno != EINVAL) {
      return Status(Code::kExhausted, text("the machine has no memory for ", bytes, " B more: ", errno_text()));
    }
    // Before Linux 5.14.
    for (uint64_t at = 0; at < bytes; at += 4096) static_cast<volatile char*>(from)[at] = 0;
  }
  std::fill_n(filled_.begin() + static_cast<std::ptrdiff_t>(run.first), run.count, true);
  return {};
}

Status PiecePool::prefault() {
  for (Run run = find(0, taken_.size(), false); run.count > 0; run = find(run.first, taken_.size(), false)) {
    ROUSE_RETURN_IF_ERROR(fill(run));
  }
  return {};
}

Status PiecePool::move_out(const std::vector<Run>& runs, uint64_t address) {
  char* to = reinterpret_cast<char*>(address);
  for (size_t i = 0; i < runs.size(); ++i) {
    const uint64_t bytes = runs[i].count * kPieceBytes;
    if (Status status = move_pages(slot(runs[i].first), to, bytes); !status.ok()) {
      const std::vector<Run> moved(runs.begin(), runs.begin() + static_cast<std::ptrdiff_t>(i));
      if (Status back = move_in(moved, address); !back.ok()) return back;
      return status;
    }
    to += bytes;
  }
  return {};
}

Status PiecePool::move_in(const std::vector<Run>& runs, uint64_t address) {
  char* const begin = reinterpret_cast<char*>(address);
  char* from = begin;
  for (const Run& run : runs) {
    ROUSE_RETURN_IF_ERROR(move_pages(from, slot(run.first), run.count * kPieceBytes));
    from += run.count * kPieceBytes;
  }
  // What is left there would fill with new pages at a touch: a touch is a mistake, and ends in a signal.
  if (from == begin) return {};
  const void* sealed = mmap(begin, static_cast<size_t>(from - begin), PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (sealed == MAP_FAILED) return Status(Code::kExhausted, text("sealing ", Hex{address}, ": ", errno_text()));
  return {};
}

}  // namespace rouse::device
