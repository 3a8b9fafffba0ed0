// How the numbers of a quantised tensor stand for real ones, in the words of a message: what comes after the strides of
// a tensor item that has wire::kQuantized.
#pragma once

#include <ATen/core/QuantizerBase.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rouse/wire/words.h"

namespace rouse::quantized {

// Channels with a scale of their own, bounded by what a message holds.
inline constexpr std::uint32_t kMaxChannels = 1u << 15;

struct Quantization {
  std::vector<std::uint64_t> words;
  at::QuantizerPtr quantizer;
};
// Null: the tensor is not quantised.
using QuantizationPtr = std::shared_ptr<const Quantization>;

// Whether tensors of that quantised dtype are redirected: those whose elements are whole bytes.
bool known(c10::ScalarType dtype);
// Appends the words of a quantised tensor. False: not of a scheme, a dtype or a size that is redirected.
bool append(const at::TensorBase& tensor, std::vector<std::uint64_t>& words);
// The quantisation of a tensor that has one. Null: as append().
QuantizationPtr of(const at::TensorBase& tensor);
// How many words those are, by their first one.
std::size_t count_of(std::uint64_t first);
// Reads them, for a tensor of `sizes` whose quantizer is to lie on `device`. Null: malformed, or not within bounds.
QuantizationPtr read(wire::Reader& reader, c10::ScalarType dtype, std::span<const std::int64_t> sizes,
                     c10::Device device);
// Whether a quantised tensor is quantised just so.
bool describes(const Quantization& expected, const at::TensorBase& tensor);
// A quantised tensor over a storage, without sizes yet.
at::Tensor make(c10::Storage storage, c10::DispatchKeySet keys, const Quantization& how);

}  // namespace rouse::quantized
