#include "autocast.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <set>
#include <string>

namespace rouse::redirect {
namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

// Which operators PyTorch casts on the CPU is read from its dispatcher; to what, has to be said here: these to the
// lower precision, those to the widest of their arguments, and the others to float32.
const std::set<std::string>& lower() {
  static const std::set<std::string> names = {"conv1d",
                                              "conv2d",
                                              "conv3d",
                                              "bmm",
                                              "mm",
                                              "linalg_vecdot",
                                              "baddbmm",
                                              "addmm",
                                              "addbmm",
                                              "linear",
                                              "_convolution",
                                              "matmul",
                                              "conv_tbc",
                                              "mkldnn_rnn_layer",
                                              "conv_transpose1d",
                                              "conv_transpose2d",
                                              "conv_transpose3d",
                                              "prelu",
                                              "scaled_dot_product_attention",
                                              "_native_multi_head_attention"};
  return names;
}
const std::set<std::string>& widest() {
  static const std::set<std::string> names = {"stack", "cat", "index_copy"};
  return names;
}

template <typename Function>
void each_tensor(c10::IValue& value, Function function) {
  if (value.isTensor()) {
    value = function(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) list.push_back(function(tensor));
    value = std::move(list);
  }
}

void cast(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard without(c10::DispatchKey::AutocastPrivateUse1);
  const auto name = handle.operator_name().name.substr(6);
  const std::size_t first = stack->size() - handle.schema().arguments().size();
  auto target = at::kFloat;
  if (lower().contains(name)) {
    target = at::autocast::get_autocast_dtype(kDevice);
  } else if (widest().contains(name)) {
    target = at::autocast::get_autocast_dtype(kDevice);
    for (std::size_t i = first; i < stack->size(); ++i) {
      each_tensor((*stack)[i], [&](const at::Tensor& tensor) {
        target = at::autocast::prioritize(target, tensor, kDevice);
        return tensor;
      });
    }
  }
  for (std::size_t i = first; i < stack->size(); ++i) {
    each_tensor((*stack)[i],
                [&](const at::Tensor& tensor) { return at::autocast::cached_cast(target, tensor, kDevice); });
  }
  handle.callBoxed(*stack);
}

}  // namespace

void register_autocast(torch::Library& aten, torch::Library& otherwise) {
  otherwise.fallback(torch::CppFunction::makeFallthrough());
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle || !handle->hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU)) continue;
    const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    aten.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&cast>());
  }
}

}  // namespace rouse::redirect
