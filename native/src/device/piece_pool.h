// The physical memory of a host device: pieces of 2 MiB in one stretch of addresses, each with a slot of its own there.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "rouse/base/status.h"

namespace rouse::device {

inline constexpr uint64_t kPieceBytes = 2 << 20;

// Slots first … first + count - 1.
struct Run {
  uint64_t first = 0;
  uint64_t count = 0;
};

// Not thread-safe.
class PiecePool {
 public:
  // `capacity` is a multiple of kPieceBytes.
  static Result<std::unique_ptr<PiecePool>> make(uint64_t capacity);
  ~PiecePool();
  PiecePool(const PiecePool&) = delete;
  PiecePool& operator=(const PiecePool&) = delete;

  // Takes pieces, in as few runs as there are, those that have pages first. kExhausted: fewer are free.
  Result<std::vector<Run>> take(uint64_t pieces);
  // Gives pieces back that lie in their slots.
  void give(const std::vector<Run>& runs);
  // Moves pieces from their slots to `address` and behind it, or back. Where a step fails, none has moved.
  Status move_out(const std::vector<Run>& runs, uint64_t address);
  Status move_in(const std::vector<Run>& runs, uint64_t address);
  // Takes the pages of all free pieces now. kExhausted.
  Status prefault();

  uint64_t free_pieces() const { return free_; }

 private:
  PiecePool(uint64_t capacity, char* mapping, uint64_t mapping_bytes);
  char* slot(uint64_t piece) const { return base_ + piece * kPieceBytes; }
  Status fill(Run run);
  // The first run of free pieces from `from` on that have pages, or do not; count 0 where there is none.
  Run find(uint64_t from, uint64_t most, bool filled) const;

  char* const mapping_;
  const uint64_t mapping_bytes_;
  char* base_;
  uint64_t free_;
  std::vector<bool> taken_;
  std::vector<bool> filled_;
};

}  // namespace rouse::device
