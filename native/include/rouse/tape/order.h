// In which order a tape first uses the weights of its model, for whoever copies them. No PyTorch here.
#pragma once

#include <cstdint>
#include <vector>

#include "rouse/tape/tape.h"

namespace rouse::tape {

// A part of the model's range.
struct Part {
  std::uint64_t offset = 0, bytes = 0;
  bool operator==(const Part&) const = default;
};

struct WeightOrder {
  std::vector<Part> first_uses;  // each weight once
  std::vector<Part> tables;      // those of them that are read by rows only: others do not have to wait for all of them
};

// Of a tape that check() passed.
WeightOrder weight_order(const Tape& tape);

}  // namespace rouse::tape
