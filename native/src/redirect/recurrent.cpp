#include "recurrent.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "fallback.h"

namespace rouse::redirect {
namespace {

using at::Tensor;
// The hidden state of one layer and direction; an LSTM's has a cell state, too.
using Hidden = std::vector<Tensor>;

// PyTorch's composite of these operators takes fused cells for any device but the CPU, and the CPU has none. So the
// steps that it takes on the CPU are taken here, in its order and with its operators: the bits are the CPU's.
enum class Kind { kTanh, kRelu, kGru, kLstm };

struct Weights {
  Tensor input, hidden, input_bias, hidden_bias, projection;
};

struct Layers {
  Kind kind = Kind::kTanh;
  std::vector<Weights> weights;
  bool biased = false, train = false, bidirectional = false;
  std::int64_t count = 1;
  double dropout = 0;
};

// Packed sequences: how many of the batch are left at each step. Empty where the input is one tensor of steps.
using BatchSizes = std::vector<std::int64_t>;

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return at::linear(x, weight, bias.defined() ? std::optional<Tensor>(bias) : std::nullopt);
}

Hidden step(Kind kind, const Tensor& from_input, const Hidden& hidden, const Weights& weights) {
  const Tensor gates = linear(hidden[0], weights.hidden, weights.hidden_bias);
  switch (kind) {
    case Kind::kTanh:
      return {gates.add_(from_input).tanh()};
    case Kind::kRelu:
      return {gates.add_(from_input).relu()};
    case Kind::kGru: {
      const auto given = from_input.unsafe_chunk(3, 1);
      const auto kept = gates.unsafe_chunk(3, 1);
      const Tensor reset = kept[0].add_(given[0]).sigmoid_();
      const Tensor update = kept[1].add_(given[1]).sigmoid_();
      const Tensor fresh = given[2].add(kept[2].mul_(reset)).tanh_();
      return {(hidden[0] - fresh).mul_(update).add_(fresh)};
    }
    case Kind::kLstm:
      break;
  }
  const auto chunks = gates.add_(from_input).unsafe_chunk(4, 1);
  const Tensor in = chunks[0].sigmoid_(), forget = chunks[1].sigmoid_(), cell = chunks[2].tanh_(),
               out = chunks[3].sigmoid_();
  const Tensor next = (forget * hidden[1]).add_(in * cell);
  const Tensor shown = out * next.tanh();
  return {weights.projection.defined() ? at::linear(shown, weights.projection) : shown, next};
}

Hidden rows(const Hidden& hidden, std::int64_t first, std::int64_t end) {
  Hidden found;
  for (const auto& each : hidden) found.push_back(each.narrow(0, first, end - first));
  return found;
}

// Parts of a batch, one below the other.
Hidden joined(const std::vector<Hidden>& parts) {
  Hidden found;
  for (std::size_t i = 0; i < parts[0].size(); ++i) {
    std::vector<Tensor> each;
    for (const auto& part : parts) each.push_back(part[i]);
    found.push_back(at::cat(each, 0));
  }
  return found;
}

// One direction of one layer; `hidden` becomes the last state.
Tensor direction(Kind kind, const Tensor& input, const BatchSizes& sizes, Hidden& hidden, const Weights& weights,
                 bool backwards) {
  const Tensor given = linear(input, weights.input, weights.input_bias);
  std::vector<Tensor> outputs;
  if (sizes.empty()) {
    auto steps = given.unbind(0);
    TORCH_CHECK(!steps.empty(), "Expected sequence length to be larger than 0 in RNN");
    if (backwards) std::reverse(steps.begin(), steps.end());
    for (const auto& each : steps) {
      hidden = step(kind, each, hidden, weights);
      outputs.push_back(hidden[0]);
    }
    if (backwards) std::reverse(outputs.begin(), outputs.end());
    return at::stack(outputs, 0);
  }
  if (backwards) {
    // From the longest sequences' last steps on, others join.
    const Hidden first = hidden;
    std::int64_t offset = given.size(0), last = sizes.back();
    hidden = rows(first, 0, last);
    for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
      if (*size > last) hidden = joined({hidden, rows(first, last, *size)});
      offset -= *size;
      last = *size;
      hidden = step(kind, given.narrow(0, offset, *size), hidden, weights);
      outputs.push_back(hidden[0]);
    }
    std::reverse(outputs.begin(), outputs.end());
    return at::cat(outputs, 0);
  }
  std::vector<Hidden> ended;
  std::int64_t offset = 0, last = sizes.front();
  for (const auto size : sizes) {
    if (size < last) {
      ended.push_back(rows(hidden, size, last));
      hidden = rows(hidden, 0, size);
    }
    last = size;
    hidden = step(kind, given.narrow(0, offset, size), hidden, weights);
    offset += size;
    outputs.push_back(hidden[0]);
  }
  ended.push_back(hidden);
  std::reverse(ended.begin(), ended.end());
  hidden = joined(ended);
  return at::cat(outputs, 0);
}

bool asked(const char* name) {
  const auto found = c10::Dispatcher::singleton().findSchema({name, ""});
  torch::jit::Stack stack;
  if (!found) return false;
  found->callBoxed(stack);
  return stack.back().toBool();
}

bool has_onednn_for(c10::ScalarType dtype) {
  if (!at::globalContext().userEnabledMkldnn()) return false;
  if (dtype == at::kBFloat16) return asked("mkldnn::_is_mkldnn_bf16_supported");
  if (dtype == at::kHalf) return !c10::GradMode::is_enabled() && asked("mkldnn::_is_mkldnn_fp16_supported");
  return dtype == at::kFloat;
}

// Where PyTorch takes a layer of oneDNN for an LSTM on the CPU, which rounds otherwise than the steps. `train` asks the
// executor for what its derivative needs: PyTorch decides that by the thread's grad mode, which is the client's.
bool has_fused_layer(const Layers& layers, const Tensor& input, const BatchSizes& sizes) {
  return layers.kind == Kind::kLstm && sizes.empty() && has_onednn_for(input.scalar_type()) && input.numel() != 0 &&
         !layers.weights[0].projection.defined();
}

Tensor fused_direction(const Layers& layers, const Tensor& input, Hidden& hidden, const Weights& weights,
                       bool backwards, bool recorded) {
  constexpr std::int64_t kLstmMode = 2;
  const auto bias = [&](const Tensor& given, const Tensor& weight) {
    return layers.biased ? given : at::zeros(weight.sizes(), weight.options());
  };
  const auto [output, last, cell, workspace] = at::mkldnn_rnn_layer(
      input, weights.input, weights.hidden, bias(weights.input_bias, weights.input),
      bias(weights.hidden_bias, weights.hidden), hidden[0], hidden[1], backwards, {}, kLstmMode, hidden[0].size(1),
      layers.count, layers.biased, layers.bidirectional, /*batch_first=*/false, recorded);
  hidden = {last, cell};
  return output;
}

// All layers: the output and each part of the last states.
std::vector<Tensor> stepwise(const Layers& layers, Tensor input, const BatchSizes& sizes, const Hidden& first,
                             bool recorded) {
  const std::int64_t directions = layers.bidirectional ? 2 : 1;
  const bool fused = has_fused_layer(layers, input, sizes);
  if (fused) input = input.contiguous();
  std::vector<std::vector<Tensor>> last(first.size());
  for (std::int64_t layer = 0; layer < layers.count; ++layer) {
    std::vector<Tensor> outputs;
    for (std::int64_t way = 0; way < directions; ++way) {
      const auto index = layer * directions + way;
      const auto& weights = layers.weights.at(static_cast<std::size_t>(index));
      Hidden hidden;
      for (const auto& each : first) hidden.push_back(fused ? each.contiguous()[index] : each.select(0, index));
      outputs.push_back(fused ? fused_direction(layers, input, hidden, weights, way == 1, recorded)
                              : direction(layers.kind, input, sizes, hidden, weights, way == 1));
      for (std::size_t i = 0; i < hidden.size(); ++i) last[i].push_back(hidden[i]);
    }
    input = directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (layers.dropout != 0 && layers.train && layer < layers.count - 1) {
      input = at::dropout(input, layers.dropout, true);
    }
  }
  std::vector<Tensor> results{input};
  for (const auto& each : last) results.push_back(at::stack(each, 0));
  return results;
}

std::vector<Weights> weights_of(at::TensorList given, bool biased, bool projected) {
  const std::size_t each = (biased ? 4u : 2u) + (projected ? 1u : 0u);
  TORCH_CHECK(!given.empty() && given.size() % each == 0, "got an incorrect number of RNN parameters");
  std::vector<Weights> found;
  for (std::size_t i = 0; i < given.size(); i += each) {
    found.push_back({given[i], given[i + 1], biased ? given[i + 2] : Tensor(), biased ? given[i + 3] : Tensor(),
                     projected ? given[i + each - 1] : Tensor()});
  }
  return found;
}

Kind kind_of(std::string_view name) {
  if (name.starts_with("aten::lstm")) return Kind::kLstm;
  if (name.starts_with("aten::gru")) return Kind::kGru;
  return name.starts_with("aten::rnn_relu") ? Kind::kRelu : Kind::kTanh;
}

Hidden hidden_of(const c10::IValue& value) {
  return value.isTensor() ? Hidden{value.toTensor()} : value.toTensorVector();
}

Tensor optional_of(const c10::IValue& value) { return value.isNone() ? Tensor() : value.toTensor(); }

// (input, hidden, w_ih, w_hh, b_ih, b_hh)
std::vector<Tensor> one_cell(Kind kind, c10::ArrayRef<c10::IValue> arguments) {
  const Weights weights{arguments[2].toTensor(), arguments[3].toTensor(), optional_of(arguments[4]),
                        optional_of(arguments[5]), {}};
  return step(kind, linear(arguments[0].toTensor(), weights.input, weights.input_bias), hidden_of(arguments[1]),
              weights);
}

struct Call {
  Layers layers;
  Tensor input;
  BatchSizes sizes;
  Hidden hidden;
  bool batch_first = false;
};

// (input, hidden, ..., batch_first), or (data, batch_sizes, hidden, ...)
Call call_of(Kind kind, bool packed, c10::ArrayRef<c10::IValue> arguments) {
  const std::size_t at = packed ? 2 : 1;
  Call call;
  call.input = arguments[0].toTensor();
  call.hidden = hidden_of(arguments[at]);
  auto& layers = call.layers;
  layers.kind = kind;
  layers.biased = arguments[at + 2].toBool();
  layers.count = arguments[at + 3].toInt();
  layers.dropout = arguments[at + 4].toDouble();
  layers.train = arguments[at + 5].toBool();
  layers.bidirectional = arguments[at + 6].toBool();
  const bool projected = kind == Kind::kLstm && call.hidden.at(0).size(2) != call.hidden.at(1).size(2);
  layers.weights = weights_of(arguments[at + 1].toTensorVector(), layers.biased, projected);
  if (packed) {
    const Tensor given = arguments[1].toTensor().cpu();
    call.sizes.assign(given.const_data_ptr<std::int64_t>(), given.const_data_ptr<std::int64_t>() + given.numel());
  } else {
    call.batch_first = arguments[at + 7].toBool();
  }
  return call;
}

bool any_requires_grad(c10::ArrayRef<c10::IValue> arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& value) {
    if (value.isTensor()) return value.toTensor().defined() && value.toTensor().requires_grad();
    if (!value.isTensorList()) return false;
    const auto list = value.toTensorVector();
    return std::any_of(list.begin(), list.end(), [](const Tensor& each) { return each.requires_grad(); });
  });
}

std::vector<Tensor> all_layers(const Call& call, bool recorded) {
  auto results = stepwise(call.layers, call.batch_first ? call.input.transpose(0, 1) : call.input, call.sizes,
                          call.hidden, recorded);
  if (call.batch_first) results[0] = results[0].transpose(0, 1);
  return results;
}

void run(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const auto& schema = handle.schema();
  const std::size_t count = schema.arguments().size();
  const c10::ArrayRef<c10::IValue> arguments(stack->data() + stack->size() - count, count);
  const auto kind = kind_of(schema.name());
  const bool cell = schema.name().ends_with("_cell");
  const bool packed = schema.overload_name() == "data";
  const bool leaf = any_requires_grad(arguments);
  const bool recorded = leaf && c10::GradMode::is_enabled();
  bool steps = recorded || at::autocast::is_autocast_enabled(c10::DeviceType::PrivateUse1);
  if (!steps && leaf && !cell && !packed) {
    // A product with a transposed batch is folded otherwise for weights that have a derivative, even if none is taken.
    const Call call = call_of(kind, packed, arguments);
    steps = call.batch_first && !has_fused_layer(call.layers, call.input, call.sizes);
  }
  if (!steps) {
    at::AutoDispatchBelowADInplaceOrView below;
    redirect(handle, stack);
    return;
  }
  auto results = cell ? one_cell(kind, arguments) : all_layers(call_of(kind, packed, arguments), recorded);
  torch::jit::drop(*stack, count);
  for (auto& each : results) stack->emplace_back(std::move(each));
}

}  // namespace

void register_recurrent(torch::Library& aten, torch::Library& autograd) {
  for (const char* name :
       {"lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input", "rnn_tanh.data", "rnn_relu.input",
        "rnn_relu.data", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"}) {
    aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&run>());
    autograd.impl(name, torch::CppFunction::makeFromBoxedFunction<&run>());
  }
}

}  // namespace rouse::redirect
