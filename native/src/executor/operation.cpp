#include "rouse/executor/operation.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>

#include <sstream>

#include "decoder.h"
#include "specs.h"

namespace rouse::executor {
namespace {

std::uint8_t flags_of(const at::TensorBase& tensor) {
  return static_cast<std::uint8_t>((tensor.is_conj() ? wire::kConjugate : 0) | (tensor.is_neg() ? wire::kNegative : 0) |
                                   (tensor.is_quantized() ? wire::kQuantized : 0));
}

// Neither a nested tensor, whose sizes are tensors, nor one of zeros that have no memory.
bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && !tensor.is_nested() && !tensor._is_zerotensor() && tensor.has_storage();
}

constexpr std::uint8_t kLooks = wire::kConjugate | wire::kNegative | wire::kQuantized;

c10::DispatchKeySet keys_of(c10::Device device, c10::ScalarType dtype) {
  if (device.is_cpu() && !c10::isQIntType(dtype)) return c10::DispatchKeySet(c10::DispatchKey::CPU);
  return c10::DispatchKeySet(c10::computeDispatchKey(dtype, c10::kStrided, device));
}

}  // namespace

bool TensorSpec::describes(const at::TensorBase& tensor) const {
  return tensor.scalar_type() == dtype && tensor.storage_offset() == offset &&
         tensor.sizes() == c10::IntArrayRef(sizes) && tensor.strides() == c10::IntArrayRef(strides) &&
         flags_of(tensor) == (flags & kLooks) && (!quantization || quantized::describes(*quantization, tensor));
}

std::string TensorSpec::describe() const {
  std::ostringstream text;
  text << (quantization ? "quantised " : "") << c10::toString(dtype) << " sizes " << c10::IntArrayRef(sizes)
       << " strides " << c10::IntArrayRef(strides) << " offset " << offset;
  return text.str();
}

at::Tensor make_tensor(const c10::Storage& storage, const TensorSpec& spec) {
  const auto keys = keys_of(storage.device(), spec.dtype);
  at::Tensor tensor = spec.quantization
                          ? quantized::make(storage, keys, *spec.quantization)
                          : at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys,
                                                                     c10::scalarTypeToTypeMeta(spec.dtype));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(c10::IntArrayRef(spec.sizes), c10::IntArrayRef(spec.strides), spec.offset);
  if (spec.flags & wire::kConjugate) impl->_set_conj(true);
  if (spec.flags & wire::kNegative) impl->_set_neg(true);
  if (spec.flags & wire::kWrapped) impl->set_wrapped_number(true);
  return tensor;
}

Result<std::shared_ptr<Operation>> Operation::decode(std::span<const std::byte> message, c10::Device device,
                                                     const Objects* objects) {
  try {
    return OperationDecoder::decode(message, device, objects);
  } catch (const std::exception& error) {
    return Status(Code::kInvalid, std::string("template: ") + error.what());
  }
}

std::vector<std::byte> Operation::encode(std::uint32_t number) const {
  wire::Writer results, message;
  if (results_) {
    for (const auto& result : *results_) write_result(results, result);
  }
  const std::string name = name_.substr(0, overload_.empty() ? name_.size() : name_.size() - overload_.size() - 1);
  wire::Template head{};
  head.number = number;
  head.name_bytes = static_cast<std::uint16_t>(name.size());
  head.overload_bytes = static_cast<std::uint16_t>(overload_.size());
  head.argument_bytes = static_cast<std::uint32_t>(arguments_.size());
  head.result_bytes = static_cast<std::uint32_t>(results.size_bytes());
  head.header.kind = static_cast<std::uint16_t>(wire::Kind::kTemplate);
  head.header.size =
      static_cast<std::uint32_t>(sizeof(head) + wire::padded(name.size()) + wire::padded(overload_.size()) +
                                 arguments_.size() + results.size_bytes());
  message.head(head);
  message.text(name);
  message.text(overload_);
  message.bytes(arguments_);
  message.bytes(results.as_bytes());
  const auto bytes = message.as_bytes();
  return {bytes.begin(), bytes.end()};
}

void Operation::push(std::span<const at::Tensor> tensors, Generators& generators, torch::jit::Stack& stack) const {
  stack.clear();
  stack.insert(stack.end(), prototype_.begin(), prototype_.end());
  for (const auto argument : lists_) {
    // A list is shared by reference: each call needs its own.
    if (stack[argument].isTensorList()) {
      stack[argument] = stack[argument].toTensorList().copy();
    } else {
      stack[argument] = stack[argument].to<c10::List<std::optional<at::Tensor>>>().copy();
    }
  }
  for (std::size_t slot = 0; slot < places_.size(); ++slot) {
    const auto& place = places_[slot];
    if (place.element < 0) {
      stack[place.argument] = tensors[slot];
    } else if (stack[place.argument].isTensorList()) {
      stack[place.argument].toTensorList().set(static_cast<std::size_t>(place.element), tensors[slot]);
    } else {
      stack[place.argument].to<c10::List<std::optional<at::Tensor>>>().set(static_cast<std::size_t>(place.element),
                                                                           tensors[slot]);
    }
  }
  for (const auto& [argument, number] : generators_) stack[argument] = generators.at(number);
}

Status Operation::run(torch::jit::Stack& stack, Generators& generators) const {
  // An operator that draws without taking a generator uses the process's own, lent to the session for the call.
  const bool lend = draws_random_ && generators_.empty();
  const c10::AutoGradMode grad_mode(for_derivative_);
  const char* kind = "RuntimeError";
  try {
    if (lend) {
      auto shared = at::globalContext().defaultGenerator(device_);
      shared.set_state(generators.at(0).get_state());
      handle_->callBoxed(stack);
      generators.at(0).set_state(shared.get_state());
    } else {
      handle_->callBoxed(stack);
    }
    return {};
  } catch (const c10::Error& error) {
    if (dynamic_cast<const c10::IndexError*>(&error)) kind = "IndexError";
    if (dynamic_cast<const c10::ValueError*>(&error)) kind = "ValueError";
    if (dynamic_cast<const c10::TypeError*>(&error)) kind = "TypeError";
    if (dynamic_cast<const c10::NotImplementedError*>(&error)) kind = "NotImplementedError";
    if (dynamic_cast<const c10::LinAlgError*>(&error)) kind = "LinAlgError";
    if (dynamic_cast<const c10::OutOfMemoryError*>(&error)) kind = "OutOfMemoryError";
    return {Code::kFailed, std::string(kind) + ": " + error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {Code::kFailed, std::string(kind) + ": " + error.what()};
  }
}

void Operation::flatten(const torch::jit::Stack& stack, std::vector<at::Tensor>& tensors) {
  tensors.clear();
  for (const auto& value : stack) {
    if (value.isTensor()) {
      tensors.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) tensors.push_back(tensor);
    }
  }
}

Status Operation::check(std::span<const at::Tensor> slots, std::span<const at::Tensor> returned) const {
  if (returned.size() != results_->size()) {
    return {Code::kMismatch, name_ + " returned " + std::to_string(returned.size()) + " tensors, its template says " +
                                 std::to_string(results_->size())};
  }
  for (std::size_t i = 0; i < returned.size(); ++i) {
    const auto& expected = (*results_)[i];
    const auto& tensor = returned[i];
    if (expected.origin == Origin::kUndefined && !tensor.defined()) continue;
    bool holds = tensor.defined() && is_plain(tensor) && tensor.device() == device_ &&
                 expected.spec.describes(tensor) &&
                 tensor.storage().nbytes() >= expected.spec.required_bytes;
    if (holds && expected.origin == Origin::kSlot) {
      holds = tensor.storage().unsafeGetStorageImpl() == slots[expected.index].storage().unsafeGetStorageImpl();
    } else if (holds) {
      // New to the client has to be new here: else a later write would change another tensor without a word.
      for (const auto& slot : slots) {
        holds = holds && tensor.storage().unsafeGetStorageImpl() != slot.storage().unsafeGetStorageImpl();
      }
    }
    if (!holds) {
      return {Code::kMismatch, name_ + ": result " + std::to_string(i) + " is not the " + expected.spec.describe() +
                                   " that its template says; it depends on data, run it again"};
    }
  }
  return {};
}

Result<std::vector<ResultSpec>> Operation::observe(std::span<const at::Tensor> slots,
                                                   std::span<const at::Tensor> returned) const {
  std::vector<ResultSpec> results;
  std::vector<const c10::StorageImpl*> made;
  for (const auto& tensor : returned) {
    ResultSpec result;
    if (!tensor.defined()) {
      result.origin = Origin::kUndefined;
      results.push_back(std::move(result));
      continue;
    }
    if (!is_plain(tensor)) {
      return Status(Code::kUnsupported, name_ +
                                            " returns a tensor that is not dense and strided, which the rouse "
                                            "device does not have; call it on a CPU tensor");
    }
    if (tensor.device() != device_) {
      return Status(Code::kUnsupported, name_ + " returns a tensor on " + tensor.device().str() + ", and not on " +
                                            device_.str() + ", where it was called; call it on a CPU tensor");
    }
    const auto* storage = tensor.storage().unsafeGetStorageImpl();
    result.spec.dtype = tensor.scalar_type();
    result.spec.flags = flags_of(tensor);
    result.spec.offset = tensor.storage_offset();
    result.spec.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
    result.spec.strides.assign(tensor.strides().begin(), tensor.strides().end());
    result.storage_bytes = storage->nbytes();
    if (tensor.is_quantized()) {
      result.spec.quantization = quantized::of(tensor);
      if (!result.spec.quantization) {
        return Status(Code::kUnsupported, name_ + " returns a quantised tensor of a dtype or a scheme that the rouse "
                                                  "device does not have; call it on a CPU tensor");
      }
    }
    if (!required_bytes(result.spec)) return Status(Code::kFailed, name_ + ": a result of more bytes than there are");
    result.index = static_cast<std::uint32_t>(made.size());
    for (std::size_t i = slots.size(); i-- > 0;) {
      if (slots[i].storage().unsafeGetStorageImpl() == storage) {
        result.origin = Origin::kSlot;
        result.index = static_cast<std::uint32_t>(i);
      }
    }
    if (result.origin == Origin::kNew) {
      for (std::size_t i = 0; i < made.size(); ++i) {
        if (made[i] == storage) {
          result.origin = Origin::kShared;
          result.index = static_cast<std::uint32_t>(i);
        }
      }
    }
    if (result.origin == Origin::kNew) made.push_back(storage);
    results.push_back(std::move(result));
  }
  return results;
}

void Operation::keep(std::vector<ResultSpec> results) {
  new_storages_ = 0;
  for (const auto& result : results) new_storages_ += result.origin == Origin::kNew ? 1 : 0;
  results_ = std::move(results);
}

Status Operation::describe(const torch::jit::Stack& stack, std::span<const ResultSpec> results, wire::Writer& items) {
  std::size_t next = 0;
  for (const auto& value : stack) {
    if (value.isTensor()) {
      write_result(items, results[next++]);
    } else if (value.isTensorList()) {
      const auto count = value.toListRef().size();
      items.item(wire::Tag::kList, static_cast<std::uint32_t>(count));
      for (std::size_t i = 0; i < count; ++i) write_result(items, results[next++]);
    } else if (value.isBool()) {
      items.item(wire::Tag::kBool, value.toBool() ? 1 : 0);
    } else if (value.isInt()) {
      items.item(wire::Tag::kInt);
      items.word(static_cast<std::uint64_t>(value.toInt()));
    } else if (value.isDouble()) {
      items.item(wire::Tag::kDouble);
      items.real(value.toDouble());
    } else if (value.isComplexDouble()) {
      items.item(wire::Tag::kComplex);
      items.real(value.toComplexDouble().real());
      items.real(value.toComplexDouble().imag());
    } else if (value.isNone()) {
      items.item(wire::Tag::kNone);
    } else {
      return {Code::kUnsupported, "results of type " + value.tagKind() + " cannot be redirected"};
    }
  }
  return {};
}

}  // namespace rouse::executor
