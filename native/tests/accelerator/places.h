// Where the executor's suites run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rouse/executor/compute.h"
#include "stand_in.h"

namespace rouse::accelerator {

// As the suites' parameter: "host" and "stand_in".
std::vector<std::string> places();
executor::Compute compute_at(const std::string& place);

// Memory at a fixed address of a place, as a model's weights have it, filled and read behind PyTorch's back.
class Bytes {
 public:
  Bytes(const std::string& place, std::size_t bytes);
  ~Bytes();
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(address_); }
  std::byte* inside() const { return inside_; }

 private:
  const bool host_;
  void* address_;
  std::byte* inside_;
};

}  // namespace rouse::accelerator
