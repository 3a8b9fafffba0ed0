#include "rouse/tape/signature.h"

#include <cstdio>

namespace rouse::tape {
namespace {

// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014: the finaliser of SplitMix64.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class Digest {
 public:
  void word(std::uint64_t value) {
    low_ = mix(low_ ^ value) + 0x9e3779b97f4a7c15;
    high_ = mix(high_ + value) ^ low_;
  }
  Signature get() const { return {mix(low_), mix(high_)}; }

 private:
  std::uint64_t low_ = 0x243f6a8885a308d3, high_ = 0x13198a2e03707344;  // digits of pi
};

}  // namespace

std::string hex(const Signature& signature) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(signature[0]),
                static_cast<unsigned long long>(signature[1]));
  return text;
}

Signature signature_of(std::string_view what, std::span<const Look> inputs) {
  Digest digest;
  digest.word(what.size());
  for (const char c : what) digest.word(static_cast<unsigned char>(c));
  digest.word(inputs.size());
  for (const Look& input : inputs) {
    digest.word(input.dtype);
    digest.word(static_cast<std::uint64_t>(input.offset));
    digest.word(input.sizes.size());
    for (const auto size : input.sizes) digest.word(static_cast<std::uint64_t>(size));
    for (const auto stride : input.strides) digest.word(static_cast<std::uint64_t>(stride));
  }
  return digest.get();
}

}  // namespace rouse::tape
