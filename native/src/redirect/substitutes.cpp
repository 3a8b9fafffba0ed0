#include "substitutes.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/kaiser_window.h>
#include <ATen/ops/zeros.h>

#include "device.h"
#include "fallback.h"

namespace rouse::redirect {
namespace {

using at::Tensor;

// Libraries count on any device that is not named "cpu" to have this for integers: transformers' experts do. In double
// precision both the edges and the counts of integers below 2^53 are exact, and so are those that a GPU returns.
Tensor histc(const Tensor& self, std::int64_t bins, const at::Scalar& low, const at::Scalar& high) {
  if (at::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    return at::histc(self.to(at::kDouble), bins, low, high).to(self.scalar_type());
  }
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::histc", "");
  torch::jit::Stack stack{self, bins, low, high};
  redirect(handle, &stack);
  return stack.back().toTensor();
}

// Derivatives that are zero everywhere have no memory in PyTorch; here they have.
Tensor zeros(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
             std::optional<at::Device>, std::optional<bool>) {
  return at::zeros(size, dtype, layout, rouse_device(), std::nullopt);
}

// Its kernel is called past the dispatcher, where there is none for this device.
Tensor kaiser_window_beta(std::int64_t length, bool periodic, double beta, std::optional<at::ScalarType> dtype,
                          std::optional<at::Layout> layout, std::optional<at::Device>, std::optional<bool>) {
  return at::kaiser_window(length, periodic, beta, dtype, layout, at::kCPU, std::nullopt).to(rouse_device());
}
Tensor kaiser_window_periodic(std::int64_t length, bool periodic, std::optional<at::ScalarType> dtype,
                              std::optional<at::Layout> layout, std::optional<at::Device>, std::optional<bool>) {
  return at::kaiser_window(length, periodic, dtype, layout, at::kCPU, std::nullopt).to(rouse_device());
}
Tensor kaiser_window(std::int64_t length, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<at::Device>, std::optional<bool>) {
  return at::kaiser_window(length, dtype, layout, at::kCPU, std::nullopt).to(rouse_device());
}

// What a traced module has in the place of a convolution; PyTorch's own asks for a kernel that only other devices have.
Tensor traced_convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                          c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                          c10::IntArrayRef output_padding, std::int64_t groups, bool, bool, bool, bool) {
  return at::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

bool plain_of_host_or_device(const Tensor& tensor) {
  const auto keys = tensor.key_set();
  return keys.has(c10::DispatchKey::Dense) && !tensor.is_nested() &&
         (keys.has_backend(c10::BackendComponent::CPUBit) || keys.has_backend(c10::BackendComponent::PrivateUse1Bit));
}

// Whether one tensor may become the other in its place. PyTorch lists the devices for which it may; where it may not,
// `module.to()` makes other parameters: tied weights come apart, and an optimizer keeps those that nobody uses.
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set()) ||
         (plain_of_host_or_device(self) && plain_of_host_or_device(from));
}

}  // namespace

void register_substitutes(torch::Library& aten) {
  aten.impl("histc", TORCH_FN(histc));
  aten.impl("_efficientzerotensor", TORCH_FN(zeros));
  aten.impl("kaiser_window", TORCH_FN(kaiser_window));
  aten.impl("kaiser_window.periodic", TORCH_FN(kaiser_window_periodic));
  aten.impl("kaiser_window.beta", TORCH_FN(kaiser_window_beta));
  aten.impl("_convolution", TORCH_FN(traced_convolution));
  aten.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
}

}  // namespace rouse::redirect
