// From a stack of arguments to a template's key and the names of the storages in it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

#include "operators.h"
#include "rouse/wire/words.h"

namespace rouse::redirect {

struct Encoded {
  wire::Writer key;
  std::vector<std::uint64_t> names;            // A storage for each tensor.
  std::vector<const c10::StorageImpl*> slots;  // The same, here.
  std::vector<at::Tensor> uploaded;            // Host tensors that were copied to the device for this call.
  bool has_mask = false;
  bool has_object = false;  // What holds for this call holds for calls with this object only.

  void clear() {
    key.clear();
    names.clear();
    slots.clear();
    uploaded.clear();
    has_mask = false;
    has_object = false;
  }
};

// The name of a tensor's storage; throws where it has none of ours.
std::uint64_t name_of(const c10::StorageImpl& storage);
inline std::uint64_t name_of(const at::TensorBase& tensor) { return name_of(*tensor.storage().unsafeGetStorageImpl()); }

// Throws: the operator cannot be called with this on the rouse device.
[[noreturn]] void refuse(const Operator& operation, const char* what);
// The item of a tensor of this device.
void encode_tensor(const Operator& operation, const at::Tensor& tensor, wire::Writer& items, std::uint32_t shared = 0);
// Throws, naming the operator, where an argument cannot be redirected.
void encode(const Operator& operation, c10::ArrayRef<c10::IValue> arguments, Encoded& encoded);

}  // namespace rouse::redirect
