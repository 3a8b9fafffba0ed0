#include "object_state.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

namespace rouse::executor {
namespace {

constexpr std::string_view kClasses = "__torch__.torch.classes.";
// What a packed tensor, or one along it, has at most along a dimension: indices of packed weights have 32 bits.
constexpr std::int64_t kMostElements = std::int64_t{1} << 31;

bool is_matrix_like(const at::Tensor& tensor, std::int64_t dimensions) {
  return tensor.defined() && tensor.dim() == dimensions && tensor.numel() > 0 && tensor.numel() < kMostElements;
}

// A number a channel, or none.
bool is_bias(const c10::IValue& value, std::int64_t channels) {
  if (value.isNone()) return true;
  if (!value.isTensor()) return false;
  const at::Tensor& bias = value.toTensor();
  return !bias.defined() || (bias.scalar_type() == at::kFloat && bias.dim() == 1 && bias.size(0) == channels);
}

bool is_weight(const at::Tensor& tensor, std::int64_t dimensions, std::int64_t axis) {
  if (!is_matrix_like(tensor, dimensions) || tensor.scalar_type() != at::kQInt8) return false;
  return tensor.qscheme() == at::kPerTensorAffine ||
         (tensor.qscheme() == at::kPerChannelAffine && tensor.q_per_channel_axis() == axis);
}

// (weight, bias)
std::string_view wrong_linear(const c10::IValue& state) {
  const auto& parts = state.toTupleRef().elements();
  if (parts.size() != 2 || !parts[0].isTensor()) return "it is not a weight and a bias";
  const at::Tensor& weight = parts[0].toTensor();
  const bool plain =
      is_matrix_like(weight, 2) && (weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kHalf);
  if (!plain && !is_weight(weight, 2, 0)) return "its weight is not a matrix of qint8, or of numbers that were rounded";
  return is_bias(parts[1], weight.size(0)) ? "" : "its bias is not a number a row";
}

// ("2", [numbers, weight], [bias]); numbers: how many dimensions, then for each its stride, padding, dilation and
// output padding, then groups, and whether it is transposed.
std::string_view wrong_convolution(const c10::IValue& state, std::int64_t dimensions) {
  const std::string_view malformed = "it is not the second version of a convolution's";
  if (!state.isTuple()) return malformed;
  const auto& parts = state.toTupleRef().elements();
  if (parts.size() != 3 || !parts[0].isString() || parts[0].toStringRef() != "2" || !parts[1].isTensorList() ||
      !parts[2].isList())
    return malformed;
  const auto tensors = parts[1].toTensorList();
  const auto biases = parts[2].toListRef();
  if (tensors.size() != 2 || biases.size() != 1) return malformed;
  const at::Tensor numbers = tensors.get(0), weight = tensors.get(1);
  const std::int64_t count = 3 + 4 * dimensions;
  if (!numbers.defined() || numbers.scalar_type() != at::kShort || numbers.dim() != 1 || numbers.size(0) != count ||
      !numbers.is_contiguous())
    return malformed;
  const auto* number = numbers.const_data_ptr<std::int16_t>();
  const std::int64_t groups = number[count - 2], transposed = number[count - 1];
  const auto least = [&](std::int64_t group, std::int16_t value) {
    const auto* const first = number + 1 + group * dimensions;
    return std::all_of(first, first + dimensions, [&](std::int16_t each) { return each >= value; });
  };
  if (number[0] != dimensions || !least(0, 1) || !least(1, 0) || !least(2, 1) || !least(3, 0) || groups < 1 ||
      (transposed != 0 && transposed != 1))
    return "its strides, paddings, dilations or groups cannot be";
  if (!is_weight(weight, 2 + dimensions, transposed)) return "its weight is not of qint8, or of other dimensions";
  if (weight.size(0) % groups != 0) return "its groups do not divide its channels";
  return is_bias(biases[0], transposed ? weight.size(1) * groups : weight.size(0))
             ? ""
             : "its bias is not a number a channel";
}

// (1, [weight], [], [bits of a number])
std::string_view wrong_table(const c10::IValue& state) {
  const auto& parts = state.toTupleRef().elements();
  if (parts.size() != 4 || parts[0].toInt() != 1 || parts[1].toTensorList().size() != 1 ||
      parts[3].toIntVector() != std::vector<std::int64_t>{8})
    return "it is not the first version of a table of bytes";
  const at::Tensor weight = parts[1].toTensorList().get(0);
  const bool fits = is_matrix_like(weight, 2) && weight.scalar_type() == at::kQUInt8 &&
                    weight.qscheme() == at::kPerChannelAffineFloatQParams && weight.q_per_channel_axis() == 0;
  return fits ? "" : "its weight is not a matrix of quint8 with a scale a row";
}

}  // namespace

std::string_view wrong_state(std::string_view class_name, const c10::IValue& state) {
  const std::string_view name = class_name.substr(std::min(class_name.size(), kClasses.size()));
  if (name == "quantized.LinearPackedParamsBase") return wrong_linear(state);
  if (name == "quantized.Conv2dPackedParamsBase") return wrong_convolution(state, 2);
  if (name == "quantized.Conv3dPackedParamsBase") return wrong_convolution(state, 3);
  if (name == "quantized.EmbeddingPackedParamsBase") return wrong_table(state);
  // Its parts are objects that were checked, and tensors that operators check.
  if (name == "rnn.CellParamsBase") return "";
  return "objects of its class are not redirected";
}

}  // namespace rouse::executor
