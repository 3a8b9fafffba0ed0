#include "kernels.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph.h"
#include "memory.h"
#include "state.h"

namespace rouse::accelerator {
namespace {

using c10::DispatchKey;

bool on_device(const at::Tensor& tensor) { return tensor.defined() && tensor.device().is_privateuseone(); }

void copy_look(const at::Tensor& from, const at::Tensor& to) {
  auto* impl = to.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
  if (from.is_conj()) impl->_set_conj(true);
  if (from.is_neg()) impl->_set_neg(true);
}

at::Tensor tensor_over(const c10::Storage& storage, DispatchKey key, const at::Tensor& looks) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), looks.dtype());
  copy_look(looks, made);
  return made;
}

// An argument or a result, with `change` of each tensor in it.
template <typename Change>
c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorList()) list.push_back(change(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorList())
      list.push_back(each ? std::optional(change(*each)) : std::nullopt);
    return list;
  }
  return value;
}

// One call: what lies on the device, as the CPU's kernels are shown it, and back.
class Call {
 public:
  c10::IValue inward(const c10::IValue& value) {
    if (value.isDevice() && value.toDevice().is_privateuseone()) return c10::Device(c10::DeviceType::CPU);
    if (value.isGenerator()) return static_cast<Generator*>(value.toGenerator().unsafeGetGeneratorImpl())->inner();
    return with_tensors(value, [this](const at::Tensor& tensor) { return inward(tensor); });
  }

  at::Tensor inward(const at::Tensor& tensor) {
    if (!on_device(tensor)) return tensor;
    for (const auto& [outer, inner] : arguments_)
      if (outer.is_same(tensor)) return inner;
    const auto* const key = tensor.storage().unsafeGetStorageImpl();
    auto found = storages_.find(key);
    if (found == storages_.end()) {
      const c10::Storage& outer = tensor.storage();
      // With an allocator, so that the CPU's kernels may resize it: then it is no longer the device's memory.
      const c10::Storage inner(
          c10::Storage::use_byte_size_t(), outer.nbytes(),
          c10::DataPtr(Memory::get().inside(outer.data()), c10::Device(c10::DeviceType::CPU)), c10::GetCPUAllocator(),
          outer.unsafeGetStorageImpl()->resizable());
      found = storages_.emplace(key, std::pair(outer, inner)).first;
    }
    at::Tensor inner = tensor_over(found->second.second, DispatchKey::CPU, tensor);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) inner.unsafeGetTensorImpl()->set_wrapped_number(true);
    arguments_.emplace_back(tensor, inner);
    return inner;
  }

  // After the kernel: what it resized is on the device as large as it made it.
  void settle() {
    for (auto& [key, pair] : storages_) {
      auto& [outer, inner] = pair;
      if (inner.nbytes() == outer.nbytes() && inner.data() == Memory::get().inside(outer.data())) continue;
      outer.set_data_ptr_noswap(moved_in(inner));
      outer.set_nbytes(inner.nbytes());
    }
    for (const auto& [outer, inner] : arguments_) {
      if (outer.sizes() != inner.sizes() || outer.strides() != inner.strides() ||
          outer.storage_offset() != inner.storage_offset())
        copy_look(inner, outer);
    }
  }

  c10::IValue outward(const c10::IValue& value) {
    return with_tensors(value, [this](const at::Tensor& tensor) { return outward(tensor); });
  }

  at::Tensor outward(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    for (const auto& [outer, inner] : arguments_)
      if (inner.is_same(tensor)) return outer;
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided && !tensor.is_quantized(),
                                "the stand-in has dense tensors only");
    const auto* const key = tensor.storage().unsafeGetStorageImpl();
    for (const auto& [outer_key, pair] : storages_)
      if (pair.second.unsafeGetStorageImpl() == key) return tensor_over(pair.first, DispatchKey::PrivateUse1, tensor);
    auto found = made_.find(key);
    if (found == made_.end()) {
      auto* const allocator = c10::GetAllocator(c10::DeviceType::PrivateUse1);
      found = made_
                  .emplace(key, c10::Storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                                             moved_in(tensor.storage()), allocator, true))
                  .first;
    }
    return tensor_over(found->second, DispatchKey::PrivateUse1, tensor);
  }

 private:
  static c10::DataPtr moved_in(const c10::Storage& from) {
    c10::DataPtr memory = c10::GetAllocator(c10::DeviceType::PrivateUse1)->allocate(from.nbytes());
    if (from.nbytes() != 0) std::memcpy(Memory::get().inside(memory.get()), from.data(), from.nbytes());
    return memory;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> arguments_;  // outside, inside
  std::unordered_map<const c10::StorageImpl*, std::pair<c10::Storage, c10::Storage>> storages_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> made_;
};

void ran() {
  if (Capture::current() != nullptr) return;  // what is captured is undone: nobody sees that it ran
  ++state().kernels;
  if (!state().fail_next.empty()) state().failed = std::exchange(state().fail_next, std::string());
}

void execute(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const auto& schema = operation.schema();
  Call call;
  torch::jit::Stack inner;
  const auto given = torch::jit::last(*stack, schema.arguments().size());
  bool takes_generator = false;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto& type = schema.arguments()[i].type();
    const bool generator = type->kind() == c10::TypeKind::OptionalType &&
                           type->containedType(0)->kind() == c10::TypeKind::GeneratorType;
    takes_generator = takes_generator || generator;
    inner.push_back(call.inward(generator && given[i].isNone() ? c10::IValue(default_generator()) : given[i]));
  }
  // A CPU kernel that takes no generator draws from the CPU's own; here those numbers are the device's.
  const bool lend = !takes_generator && operation.hasTag(at::Tag::nondeterministic_seeded);
  at::Generator of_cpu = at::globalContext().defaultGenerator(c10::kCPU);
  auto& mine = static_cast<Generator*>(default_generator().unsafeGetGeneratorImpl())->inner();
  const at::Tensor before = lend ? of_cpu.get_state() : at::Tensor();
  if (lend) of_cpu.set_state(mine.get_state());
  operation.callBoxed(&inner);
  if (lend) {
    mine.set_state(of_cpu.get_state());
    of_cpu.set_state(before);
  }
  call.settle();
  ran();
  torch::jit::drop(*stack, schema.arguments().size());
  bool reads = false;
  for (const c10::IValue& value : inner) {
    reads = reads || !(value.isTensor() || value.isTensorList());
    stack->push_back(call.outward(value));
  }
  // A number for the host is waited for.
  if (reads) wait_for_device();
}

// Tensors over the same memory as those that are given, in storages of their own: whatever becomes of those, a graph's
// calls find it.
class Twins {
 public:
  c10::IValue operator()(const c10::IValue& value) {
    return with_tensors(value, [this](const at::Tensor& tensor) { return (*this)(tensor); });
  }

  at::Tensor operator()(const at::Tensor& tensor) {
    if (!on_device(tensor)) return tensor;
    const c10::Storage& given = tensor.storage();
    auto found = std::find_if(storages_.begin(), storages_.end(), [&](const auto& pair) {
      return pair.first.unsafeGetStorageImpl() == given.unsafeGetStorageImpl();
    });
    if (found == storages_.end()) {
      c10::Storage twin(c10::Storage::use_byte_size_t(), given.nbytes(),
                        c10::DataPtr(const_cast<void*>(given.data()), device()),
                        c10::GetAllocator(c10::DeviceType::PrivateUse1), given.unsafeGetStorageImpl()->resizable());
      found = storages_.insert(storages_.end(), std::pair(given, std::move(twin)));
    }
    at::Tensor twin = tensor_over(found->second, DispatchKey::PrivateUse1, tensor);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) twin.unsafeGetTensorImpl()->set_wrapped_number(true);
    return twin;
  }

  // What was given and its twin, in the order of the arguments.
  const std::vector<std::pair<c10::Storage, c10::Storage>>& storages() const { return storages_; }

 private:
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;
};

// Where a call of a graph has left something, and has to leave it again.
struct Left {
  const void* address;
  std::size_t bytes;
};

void leave(const Left& left, const c10::Storage& storage) {
  if (storage.data() == left.address) return;
  auto& memory = Memory::get();
  std::memcpy(memory.inside(left.address), memory.inside(storage.data()), std::min(left.bytes, storage.nbytes()));
}

std::vector<c10::Storage> results_of(const torch::jit::Stack& stack) {
  std::vector<c10::Storage> storages;
  for (const c10::IValue& value : stack)
    with_tensors(value, [&](const at::Tensor& tensor) {
      if (on_device(tensor)) storages.push_back(tensor.storage());
      return tensor;
    });
  return storages;
}

// A call into a graph: done now, as what follows needs its results' looks, undone at the capture's end, and done again,
// from and to the same addresses, by each replay.
void capture_call(Capture& capture, const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const std::size_t count = operation.schema().arguments().size();
  Twins twins;
  torch::jit::Stack arguments;
  for (const c10::IValue& given : torch::jit::last(*stack, count)) arguments.push_back(twins(given));
  for (const auto& [given, twin] : twins.storages()) capture.keep(given);
  torch::jit::Stack results(stack->end() - static_cast<long>(count), stack->end());
  execute(operation, &results);
  std::vector<Left> resized, made;
  for (const auto& [given, twin] : twins.storages()) resized.push_back({given.data(), given.nbytes()});
  for (const c10::Storage& storage : results_of(results)) made.push_back({storage.data(), storage.nbytes()});
  capture.add([operation, arguments, resized, made] {
    Twins again;
    torch::jit::Stack values;
    for (const c10::IValue& argument : arguments) values.push_back(again(argument));
    execute(operation, &values);
    for (std::size_t i = 0; i < resized.size(); ++i) leave(resized[i], again.storages()[i].second);
    const auto storages = results_of(values);
    for (std::size_t i = 0; i < made.size(); ++i) leave(made[i], storages[i]);
  });
  torch::jit::drop(*stack, count);
  stack->insert(stack->end(), results.begin(), results.end());
}

// Any operator.
void run(const c10::OperatorHandle& operation, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (Capture* const capture = Capture::current()) return capture_call(*capture, operation, stack);
  execute(operation, stack);
}

void copy(const at::Tensor& from, const at::Tensor& to) {
  Call call;
  const at::Tensor source = call.inward(from);
  call.inward(to).copy_(source);
  ran();
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (Capture* const capture = Capture::current()) {
    if (on_device(from) != on_device(to)) capture->refuse("a copy from or to the host");
    Twins twins;
    capture->add([source = twins(from), target = twins(to)] { copy(source, target); });
    for (const auto& [given, twin] : twins.storages()) capture->keep(given);
  }
  copy(from, to);
  if (!non_blocking && on_device(from) != on_device(to)) wait_for_device();
  return to;
}

}  // namespace

void register_kernels() {
  static std::deque<torch::Library> libraries;
  const auto line = static_cast<std::uint32_t>(__LINE__);
  auto& all = libraries.emplace_back(torch::Library::IMPL, "_", DispatchKey::PrivateUse1, __FILE__, line);
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
  auto& aten = libraries.emplace_back(torch::Library::IMPL, "aten", DispatchKey::PrivateUse1, __FILE__, line);
  aten.impl("_copy_from", &copy_from);
  // Copies follow these flags themselves: resolving one would copy again.
  for (const auto key : {DispatchKey::Conjugate, DispatchKey::Negative}) {
    auto& flagged = libraries.emplace_back(torch::Library::IMPL, "aten", key, __FILE__, line);
    flagged.impl("_copy_from", torch::CppFunction::makeFallthrough());
  }
  // Operators with a kernel of the CPU's and a decomposition: the kernel, so that the numbers are the CPU's.
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle || name.name.rfind("aten::", 0) != 0 || name.name == "aten::_copy_from") continue;
    if (handle->hasKernelForDispatchKey(DispatchKey::CPU) &&
        (handle->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
         handle->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd)) &&
        !handle->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional)) {
      const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      aten.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run>());
    }
  }
  // Composite, and what it chooses below depends on the device.
  aten.impl("convolution", torch::CppFunction::makeFromBoxedFunction<&run>());
}

}  // namespace rouse::accelerator
