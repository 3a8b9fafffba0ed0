// A session's random numbers: generators of the real device, by number; 0 is the one that operators use by default.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "rouse/base/status.h"

namespace rouse::executor {

class Generators {
 public:
  // Of `device`. Number 0 is there, seeded as PyTorch seeds its own.
  explicit Generators(c10::Device device = c10::Device(c10::DeviceType::CPU));
  // Made at first use.
  at::Generator& at(std::uint32_t number);
  Status seed(std::uint32_t number, std::uint64_t seed);
  Status set_state(std::uint32_t number, std::span<const std::byte> state);
  std::vector<std::byte> state(std::uint32_t number);
  void drop(std::uint32_t number);

 private:
  at::Generator make() const;

  c10::Device device_;
  std::unordered_map<std::uint32_t, at::Generator> generators_;
};

}  // namespace rouse::executor
