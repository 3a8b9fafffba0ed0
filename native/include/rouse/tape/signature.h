// What a request's inputs look like, as a number: requests of one signature may have one tape.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace rouse::tape {

using Signature = std::array<std::uint64_t, 2>;

// 32 digits.
std::string hex(const Signature& signature);

// One input: dtype is c10::ScalarType; sizes, strides and offset in elements.
struct Look {
  std::uint8_t dtype = 0;
  std::int64_t offset = 0;
  std::span<const std::int64_t> sizes, strides;
};

// A digest of 128 bits, the same in every process and version. `what`: whatever else decides what the request does, as
// the name of a method and its flags. Not against malice: a tape only ever computes on its own function's memory.
Signature signature_of(std::string_view what, std::span<const Look> inputs);

}  // namespace rouse::tape
