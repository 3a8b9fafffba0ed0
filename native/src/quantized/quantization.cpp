#include "rouse/quantized/quantization.h"

#include <ATen/ops/empty.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>

#include <bit>
#include <limits>

namespace rouse::quantized {
namespace {

// The first word. Per tensor: then a scale and a zero point; per channel: then `channels` scales, and as many zero
// points, which are real numbers for kPerChannelAffineFloatQParams.
struct Head {
  std::uint8_t scheme;  // c10::QScheme
  std::uint8_t axis;
  std::uint16_t reserved;
  std::uint32_t channels;  // 0 per tensor.
};
static_assert(sizeof(Head) == 8);

bool per_channel(at::QScheme scheme) {
  return scheme == at::kPerChannelAffine || scheme == at::kPerChannelAffineFloatQParams;
}

template <typename T>
void append_all(const at::Tensor& values, std::vector<std::uint64_t>& words) {
  const at::Tensor plain =
      values.to(at::TensorOptions(at::kCPU).dtype(c10::CppTypeToScalarType<T>::value)).contiguous();
  const T* data = plain.const_data_ptr<T>();
  for (std::int64_t i = 0; i < plain.numel(); ++i) words.push_back(std::bit_cast<std::uint64_t>(data[i]));
}

template <typename T>
at::Tensor take_all(std::span<const std::uint64_t> words, c10::Device device) {
  at::Tensor values = at::empty({static_cast<std::int64_t>(words.size())},
                                at::TensorOptions(at::kCPU).dtype(c10::CppTypeToScalarType<T>::value));
  T* data = values.mutable_data_ptr<T>();
  for (std::size_t i = 0; i < words.size(); ++i) data[i] = std::bit_cast<T>(words[i]);
  return values.to(device);
}

// What PyTorch's kernels convert to 32 bits without looking.
bool fits(std::uint64_t zero_point) {
  const auto value = static_cast<std::int64_t>(zero_point);
  return value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max();
}

}  // namespace

bool known(c10::ScalarType dtype) {
  return dtype == c10::kQInt8 || dtype == c10::kQUInt8 || dtype == c10::kQInt32;
}

bool append(const at::TensorBase& tensor, std::vector<std::uint64_t>& words) {
  if (!known(tensor.scalar_type())) return false;
  const auto quantizer = at::get_qtensorimpl(tensor)->quantizer();
  // One that is not set yet has no scheme, and throws when it is asked.
  if (!quantizer || dynamic_cast<const at::UnknownQuantizer*>(quantizer.get())) return false;
  const auto scheme = quantizer->qscheme();
  Head head{static_cast<std::uint8_t>(scheme), 0, 0, 0};
  if (scheme == at::kPerTensorAffine) {
    const auto& affine = static_cast<const at::PerTensorAffineQuantizer&>(*quantizer);
    words.insert(words.end(), {std::bit_cast<std::uint64_t>(head), std::bit_cast<std::uint64_t>(affine.scale()),
                               static_cast<std::uint64_t>(affine.zero_point())});
    return true;
  }
  if (!per_channel(scheme)) return false;
  const auto& affine = static_cast<const at::PerChannelAffineQuantizer&>(*quantizer);
  if (affine.scales().numel() > kMaxChannels) return false;
  head.axis = static_cast<std::uint8_t>(affine.axis());
  head.channels = static_cast<std::uint32_t>(affine.scales().numel());
  words.push_back(std::bit_cast<std::uint64_t>(head));
  append_all<double>(affine.scales(), words);
  if (scheme == at::kPerChannelAffine) {
    append_all<std::int64_t>(affine.zero_points(), words);
  } else {
    append_all<double>(affine.zero_points(), words);
  }
  return true;
}

QuantizationPtr of(const at::TensorBase& tensor) {
  auto made = std::make_shared<Quantization>();
  if (!append(tensor, made->words)) return nullptr;
  made->quantizer = at::get_qtensorimpl(tensor)->quantizer();
  return made;
}

std::size_t count_of(std::uint64_t first) {
  const auto head = std::bit_cast<Head>(first);
  return head.channels == 0 ? 3 : 1 + 2 * std::size_t{head.channels};
}

QuantizationPtr read(wire::Reader& reader, c10::ScalarType dtype, std::span<const std::int64_t> sizes,
                     c10::Device device) {
  std::uint64_t first;
  if (!known(dtype) || !reader.word(first)) return nullptr;
  const auto head = std::bit_cast<Head>(first);
  const auto scheme = static_cast<at::QScheme>(head.scheme);
  const std::size_t more = count_of(first) - 1;
  if (head.reserved != 0 || head.channels > kMaxChannels || reader.left() / 8 < more) return nullptr;
  auto made = std::make_shared<Quantization>();
  made->words.resize(1 + more);
  made->words[0] = first;
  const auto rest = std::span(made->words).subspan(1);
  (void)reader.words(more, rest);
  if (scheme == at::kPerTensorAffine) {
    if (head.channels != 0 || head.axis != 0 || !fits(rest[1])) return nullptr;
    made->quantizer = at::make_per_tensor_affine_quantizer(std::bit_cast<double>(rest[0]),
                                                           static_cast<std::int64_t>(rest[1]), dtype);
    return made;
  }
  // Kernels take a scale for each index along the axis, without looking how many there are.
  if (!per_channel(scheme) || head.channels == 0 || head.axis >= sizes.size() || sizes[head.axis] != head.channels) {
    return nullptr;
  }
  const auto scales = rest.first(head.channels), zero_points = rest.subspan(head.channels);
  const bool whole = scheme == at::kPerChannelAffine;
  for (const auto zero_point : zero_points) {
    if (whole && !fits(zero_point)) return nullptr;
  }
  made->quantizer = at::make_per_channel_affine_quantizer(
      take_all<double>(scales, device),
      whole ? take_all<std::int64_t>(zero_points, device) : take_all<double>(zero_points, device), head.axis, dtype);
  return made;
}

bool describes(const Quantization& expected, const at::TensorBase& tensor) {
  std::vector<std::uint64_t> words;
  return append(tensor, words) && words == expected.words;
}

at::Tensor make(c10::Storage storage, c10::DispatchKeySet keys, const Quantization& how) {
  return at::detail::make_tensor<at::QTensorImpl>(std::move(storage), keys,
                                                  c10::scalarTypeToTypeMeta(how.quantizer->scalar_type()),
                                                  how.quantizer);
}

}  // namespace rouse::quantized
