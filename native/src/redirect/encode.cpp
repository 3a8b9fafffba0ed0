#include "encode.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "device.h"
#include "objects.h"
#include "rouse/quantized/quantization.h"
#include "rouse/redirect/client.h"

namespace rouse::redirect {
namespace {

using wire::Tag;

// Kernels of quantised tensors round as the engine does that is chosen when they run; the executor's is PyTorch's own
// choice, as this process's was at the start.
const at::QEngine first_engine = at::globalContext().qEngine();

std::uint8_t flags_of(const c10::TensorImpl& tensor) {
  return static_cast<std::uint8_t>((tensor.is_conj() ? wire::kConjugate : 0) | (tensor.is_neg() ? wire::kNegative : 0) |
                                   (tensor.is_wrapped_number() ? wire::kWrapped : 0));
}

// Operators that take a tensor in the host's memory by design, whatever the device.
bool takes_host_tensors(const Operator& operation) {
  if (operation.overload == "data") {  // batch sizes of packed sequences
    return operation.name == "aten::lstm" || operation.name == "aten::gru" || operation.name == "aten::rnn_tanh" ||
           operation.name == "aten::rnn_relu";
  }
  return operation.name == "aten::_pack_padded_sequence" || operation.name == "aten::_ctc_loss";
}

// Which of the tensors before shares the storage, counted from 1; 0: none. A part of the key, as what a call returns
// depends on it: in-place is another template than out of place. Looked for among the first, to bound the work.
std::uint32_t shared_with(const c10::StorageImpl* storage, const Encoded& encoded) {
  constexpr std::size_t kLooked = 64;
  for (std::size_t i = 0; i < std::min(kLooked, encoded.slots.size()); ++i) {
    if (encoded.slots[i] == storage) return static_cast<std::uint32_t>(i) + 1;
  }
  return 0;
}

void encode_tensor(const Operator& operation, const at::Tensor& tensor, bool index, Encoded& encoded) {
  if (!tensor.defined()) {
    encoded.key.item(Tag::kUndefined);
    return;
  }
  const auto& impl = *tensor.unsafeGetTensorImpl();
  if (C10_UNLIKELY(!impl.device().is_privateuseone())) {
    if (impl.is_cpu() && impl.layout() == c10::kStrided && impl.dim() == 0 && impl.itemsize() <= 16) {
      const auto plain = tensor.resolve_conj().resolve_neg();
      std::uint64_t bits[2] = {0, 0};
      std::memcpy(bits, plain.const_data_ptr(), plain.itemsize());
      encoded.key.item(Tag::kNumber, 0, static_cast<std::uint8_t>(plain.scalar_type()),
                       static_cast<std::uint8_t>(flags_of(impl) & wire::kWrapped));
      encoded.key.word(bits[0]);
      encoded.key.word(bits[1]);
      return;
    }
    TORCH_CHECK(impl.is_cpu() && (index || takes_host_tensors(operation)), operation.name,
                ": expected all tensors to be on the same device, but found at least two devices, rouse:0 and ",
                impl.device().str(), "!");
    encoded.uploaded.push_back(tensor.to(rouse_device()));
    encode_tensor(operation, encoded.uploaded.back(), index, encoded);
    return;
  }
  const auto* storage = impl.unsafe_storage().unsafeGetStorageImpl();
  encode_tensor(operation, tensor, encoded.key, shared_with(storage, encoded));
  encoded.names.push_back(name_of(*storage));
  encoded.slots.push_back(storage);
  if (index) {
    const auto dtype = c10::typeMetaToScalarType(impl.dtype());
    encoded.has_mask = encoded.has_mask || dtype == c10::kBool || dtype == c10::kByte;
  }
}

void encode_scalar(const c10::IValue& value, Encoded& encoded) {
  auto& key = encoded.key;
  if (value.isInt()) {
    key.item(Tag::kInt);
    key.word(static_cast<std::uint64_t>(value.toInt()));
  } else if (value.isDouble()) {
    key.item(Tag::kDouble);
    key.real(value.toDouble());
  } else if (value.isBool()) {
    key.item(Tag::kBool, value.toBool() ? 1 : 0);
  } else {
    key.item(Tag::kComplex);
    key.real(value.toComplexDouble().real());
    key.real(value.toComplexDouble().imag());
  }
}

void encode_object(const Operator& operation, const c10::IValue& value, Encoded& encoded) {
  encoded.has_object = true;
  encoded.key.item(Tag::kObject, Objects::get().number_of(operation, value));
}

void encode_list(const Operator& operation, const c10::IValue& value, Encoded& encoded) {
  auto& key = encoded.key;
  if (value.isIntList()) {
    const auto list = value.toIntVector();
    key.item(Tag::kIntList, static_cast<std::uint32_t>(list.size()));
    key.words({list.data(), list.size()});
    return;
  }
  if (value.isDoubleList()) {
    const auto list = value.toDoubleVector();
    key.item(Tag::kDoubleList, static_cast<std::uint32_t>(list.size()));
    for (const auto each : list) key.real(each);
    return;
  }
  if (value.isBoolList()) {
    const auto list = value.toBoolList();
    key.item(Tag::kBoolList, static_cast<std::uint32_t>(list.size()));
    for (const bool each : list) key.word(each ? 1 : 0);
    return;
  }
  const auto list = value.toListRef();
  // Optional tensors in a list are indices, which may lie in the host's memory.
  const bool indices = !value.isTensorList();
  key.item(Tag::kList, static_cast<std::uint32_t>(list.size()));
  for (const auto& each : list) {
    if (each.isNone()) {
      key.item(Tag::kNone);
    } else if (each.isTensor()) {
      encode_tensor(operation, each.toTensor(), indices, encoded);
    } else if (each.isScalar()) {
      encode_scalar(each, encoded);
    } else if (each.isObject()) {
      encode_object(operation, each, encoded);
    } else {
      refuse(operation, "a list of this type of argument is not redirected");
    }
  }
}

}  // namespace

void refuse(const Operator& operation, const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, operation.name, operation.overload.empty() ? "" : ".", operation.overload,
                              " cannot run on the rouse device: ", what, "; call it on CPU tensors (tensor.cpu())");
}

void encode_tensor(const Operator& operation, const at::Tensor& tensor, wire::Writer& items, std::uint32_t shared) {
  const auto& impl = *tensor.unsafeGetTensorImpl();
  const bool is_quantized = tensor.is_quantized();
  if (impl.layout() != c10::kStrided || tensor.is_nested()) {
    refuse(operation, "sparse and nested tensors are not redirected");
  }
  items.item(Tag::kTensor, shared, static_cast<std::uint8_t>(c10::typeMetaToScalarType(impl.dtype())),
             static_cast<std::uint8_t>(flags_of(impl) | (is_quantized ? wire::kQuantized : 0)),
             static_cast<std::uint8_t>(impl.dim()));
  items.word(static_cast<std::uint64_t>(impl.storage_offset()));
  const auto sizes = impl.sizes();
  const auto strides = impl.strides();
  items.words({sizes.data(), sizes.size()});
  items.words({strides.data(), strides.size()});
  if (C10_UNLIKELY(is_quantized)) {
    if (at::globalContext().qEngine() != first_engine) {
      refuse(operation, "torch.backends.quantized.engine was changed, and the executor's was not");
    }
    std::vector<std::uint64_t> words;
    if (!quantized::append(tensor, words)) {
      refuse(operation, "quantised tensors are redirected with dtypes qint8, quint8 and qint32, affine, and with at "
                        "most 32768 channels");
    }
    items.bytes(std::as_bytes(std::span(words)));
  }
}

void encode(const Operator& operation, c10::ArrayRef<c10::IValue> arguments, Encoded& encoded) {
  for (const auto& value : arguments) {
    if (value.isTensor()) {
      encode_tensor(operation, value.toTensor(), false, encoded);
    } else if (value.isNone()) {
      encoded.key.item(Tag::kNone);
    } else if (value.isInt() || value.isDouble() || value.isBool() || value.isComplexDouble()) {
      encode_scalar(value, encoded);
    } else if (value.isList()) {
      encode_list(operation, value, encoded);
    } else if (value.isString()) {
      encoded.key.item(Tag::kString, static_cast<std::uint32_t>(value.toStringRef().size()));
      encoded.key.text(value.toStringRef());
    } else if (value.isDevice()) {
      encoded.key.item(Tag::kDevice, value.toDevice().is_cpu() ? 1 : 0);
    } else if (value.isGenerator()) {
      encoded.key.item(Tag::kGenerator, generator_number(value.toGenerator()));
    } else if (value.isObject()) {
      encode_object(operation, value, encoded);
    } else {
      refuse(operation, "this type of argument is not redirected");
    }
  }
  TORCH_CHECK(encoded.names.size() <= wire::kMaxSlots && encoded.key.size_bytes() < wire::kMaxMessageBytes / 2,
              operation.name, ": more tensors than one message to the executor holds");
}

}  // namespace rouse::redirect
