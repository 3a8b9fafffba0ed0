// Tensors over what the executor has at an address of a mapped range.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace rouse::redirect {

// A contiguous tensor whose storage is the memory at `address`, exactly as large; nothing is copied. That the range is
// mapped, and holds it, is checked by the executor: what is not there is an error at the next wait.
at::Tensor tensor_at(std::uint64_t address, at::ScalarType dtype, const std::vector<std::int64_t>& sizes);

}  // namespace rouse::redirect
