// Puts the device's kernels into PyTorch's dispatcher, once a process.
#include "register.h"

#include <c10/core/DeviceType.h>
#include <torch/library.h>

#include <deque>
#include <string>

#include "autocast.h"
#include "device.h"
#include "fallback.h"
#include "local.h"
#include "recurrent.h"
#include "substitutes.h"

namespace rouse::redirect {
namespace {

using c10::DispatchKey;

// Operators that have a CPU kernel and a decomposition beside it: unregistered, the decomposition would win on this
// device and round otherwise than the kernel. Structured operators are left alone: their default allocates the results
// here and redirects the `out` variant.
bool needs_registration(const c10::OperatorHandle& handle) {
  return handle.hasKernelForDispatchKey(DispatchKey::CPU) &&
         (handle.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
          handle.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd)) &&
         !handle.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

}  // namespace

void register_backend() {
  static std::deque<torch::Library> libraries;
  if (!libraries.empty()) return;
  c10::register_privateuse1_backend("rouse");
  register_device();
  const auto line = static_cast<std::uint32_t>(__LINE__);
  auto& all = libraries.emplace_back(torch::Library::IMPL, "_", DispatchKey::PrivateUse1, __FILE__, line);
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&redirect>());
  auto& aten = libraries.emplace_back(torch::Library::IMPL, "aten", DispatchKey::PrivateUse1, __FILE__, line);
  register_local(aten);
  register_substitutes(aten);
  auto& autograd =
      libraries.emplace_back(torch::Library::IMPL, "aten", DispatchKey::AutogradPrivateUse1, __FILE__, line);
  register_recurrent(aten, autograd);
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0 || is_local(full_name(name))) continue;
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (handle && needs_registration(*handle)) {
      aten.impl(full_name(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&redirect>());
    }
  }
  // Composite only, but what they choose below depends on the device (kernels, drivers): the real one decides.
  for (const char* name : {"convolution", "convolution_backward", "linalg_lstsq", "_grouped_mm"}) {
    const auto handle = c10::Dispatcher::singleton().findSchema({std::string("aten::") + name, ""});
    if (handle && !needs_registration(*handle)) {
      aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&redirect>());
    }
  }
  auto& quantized =
      libraries.emplace_back(torch::Library::IMPL, "_", DispatchKey::QuantizedPrivateUse1, __FILE__, line);
  quantized.fallback(torch::CppFunction::makeFromBoxedFunction<&redirect>());
  auto& aten_quantized =
      libraries.emplace_back(torch::Library::IMPL, "aten", DispatchKey::QuantizedPrivateUse1, __FILE__, line);
  register_local_quantized(aten_quantized);
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0 || is_local_quantized(full_name(name))) continue;
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    // Structured ones, too: their defaults know nothing of a result's scale.
    if (handle && handle->hasKernelForDispatchKey(DispatchKey::QuantizedCPU)) {
      aten_quantized.impl(full_name(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&redirect>());
    }
  }
  auto& conjugate = libraries.emplace_back(torch::Library::IMPL, "aten", DispatchKey::Conjugate, __FILE__, line);
  auto& negative = libraries.emplace_back(torch::Library::IMPL, "aten", DispatchKey::Negative, __FILE__, line);
  register_fallthroughs(conjugate, negative);
  auto& autocast =
      libraries.emplace_back(torch::Library::IMPL, "aten", DispatchKey::AutocastPrivateUse1, __FILE__, line);
  auto& otherwise = libraries.emplace_back(torch::Library::IMPL, "_", DispatchKey::AutocastPrivateUse1, __FILE__, line);
  register_autocast(autocast, otherwise);
}

}  // namespace rouse::redirect
