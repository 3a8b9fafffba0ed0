#include "local.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

#include <array>
#include <set>
#include <string>

#include "device.h"
#include "encode.h"
#include "fallback.h"
#include "rouse/redirect/client.h"

namespace at::native {
// The choice depends on shapes and settings only, and the real device makes the same one.
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &_fused_sdp_choice_cpp)
}  // namespace at::native

namespace rouse::redirect {
namespace {

using at::Tensor;

at::Device checked_device(std::optional<at::Device> device) {
  const auto found = device.value_or(rouse_device());
  TORCH_CHECK(found.index() <= 0, "there is one rouse device, rouse:0; ", found.str(), " is not there");
  return rouse_device();
}

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
             std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided,
                              "the rouse device has strided tensors only; make sparse ones on the CPU");
  checked_device(device);
  return at::detail::empty_generic(size, &rouse_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool>) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided,
                              "the rouse device has strided tensors only; make sparse ones on the CPU");
  checked_device(device);
  return at::detail::empty_strided_generic(size, stride, &rouse_allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

std::size_t first_byte(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize();
}

// Elements lie one after the other, in whatever order of dimensions, and as they are (no conjugate to apply).
bool plain(const Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg();
}

void upload(const Tensor& from, const Tensor& to) {
  // Converted here, as PyTorch converts on its way to a device.
  Tensor host = from.resolve_conj().resolve_neg().to(to.scalar_type()).expand_as(to);
  if (!plain(to)) {
    Tensor whole = at::empty(to.sizes(), to.options());
    upload(host, whole);
    copy_there(to, whole);
    return;
  }
  if (host.strides() != to.strides()) {
    Tensor arranged = at::empty_strided(to.sizes(), to.strides(), host.options());
    arranged.copy_(host);
    host = arranged;
  }
  const auto* data = static_cast<const std::byte*>(host.const_data_ptr());
  Client::get().write(name_of(to), first_byte(to), {data, static_cast<std::size_t>(host.numel()) * host.itemsize()});
}

void download(const Tensor& from, const Tensor& to) {
  if (!plain(from)) {
    Tensor whole = at::empty(from.sizes(), from.options());
    copy_there(whole, from);
    download(whole, to);
    return;
  }
  const bool direct = from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes() &&
                      from.strides() == to.strides() && plain(to);
  Tensor host = direct ? to : at::empty_strided(from.sizes(), from.strides(), from.options().device(at::kCPU));
  auto* data = static_cast<std::byte*>(host.mutable_data_ptr());
  Client::get().read(name_of(from), first_byte(from), {data, static_cast<std::size_t>(host.numel()) * host.itemsize()});
  if (!direct) to.copy_(host);
}

}  // namespace

void copy_there(const Tensor& to, const Tensor& from) {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  torch::jit::Stack stack{to, from, false};
  redirect(handle, &stack);
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  if (to.numel() == 0) return to;
  const bool from_rouse = from.device().is_privateuseone();
  const bool to_rouse = to.device().is_privateuseone();
  TORCH_CHECK_NOT_IMPLEMENTED(from.layout() == at::kStrided && to.layout() == at::kStrided,
                              "the rouse device has strided tensors only; keep sparse ones on the CPU");
  if (from_rouse && to_rouse) {
    copy_there(to, from);
  } else if (to_rouse) {
    TORCH_CHECK(from.is_cpu(), "tensors come to the rouse device from the CPU; ", from.device(), " is not copied");
    upload(from, to);
  } else {
    TORCH_CHECK(to.is_cpu(), "tensors leave the rouse device to the CPU; ", to.device(), " is not copied");
    download(from, to);
  }
  return to;
}

const Tensor& resize_to(const Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != size) {
    impl->set_sizes_contiguous(size);
    const auto needed = at::detail::computeStorageNbytesContiguous(size, self.itemsize(),
                                                                   static_cast<std::size_t>(self.storage_offset()));
    auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    if (needed > storage->nbytes()) {
      TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
      Client::get().resize(name_of(*storage), needed);
      storage->set_nbytes(needed);
    }
  }
  if (format) impl->empty_tensor_restride(*format);
  return self;
}

namespace {

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  resize_to(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  Tensor host = at::empty({}, self.options().device(at::kCPU));
  Client::get().read(name_of(self), first_byte(self),
                     {static_cast<std::byte*>(host.mutable_data_ptr()), host.itemsize()});
  if (self.is_conj()) host.unsafeGetTensorImpl()->_set_conj(true);
  if (self.is_neg()) host.unsafeGetTensorImpl()->_set_neg(true);
  return at::native::_local_scalar_dense_cpu(host.resolve_conj().resolve_neg());
}

}  // namespace

Tensor& set_strided(Tensor& self, at::Storage source, std::int64_t offset, c10::IntArrayRef size,
                    c10::IntArrayRef stride) {
  TORCH_CHECK(source.device().is_privateuseone(), "set_: the storage is on ", source.device(), ", the tensor on ",
              self.device());
  auto* impl = self.unsafeGetTensorImpl();
  const auto contiguous = stride.data() == nullptr;
  impl->set_storage_keep_dtype(std::move(source));
  if (contiguous) {
    impl->set_storage_offset(offset);
    resize_to(self, size, std::nullopt);
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride, offset);
  }
  const auto needed =
      contiguous ? 0
                 : at::detail::computeStorageNbytes(size, stride, self.itemsize(), static_cast<std::size_t>(offset));
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (needed > storage->nbytes()) {
    Client::get().resize(name_of(*storage), needed);
    storage->set_nbytes(needed);
  }
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source) {
  const auto count = static_cast<std::int64_t>(source.nbytes() / self.itemsize());
  return set_strided(self, std::move(source), 0, {count}, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) return self;
  return set_strided(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

namespace {

Tensor& set_nothing(Tensor& self) {
  Tensor fresh = at::empty({0}, self.options());
  return set_strided(self, fresh.storage(), 0, {0}, {});
}

Tensor as_strided(const Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                  std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

Tensor view(const Tensor& self, c10::IntArrayRef size) { return at::native::view(self, size); }

Tensor reshape_alias(const Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

Tensor unfold(const Tensor& self, std::int64_t dimension, std::int64_t size, std::int64_t step) {
  return at::native::unfold(self, dimension, size, step);
}

bool is_pinned(const Tensor&, std::optional<at::Device>) { return false; }

const std::set<std::string>& local_names() {
  static const std::set<std::string> names = {
      "aten::empty.memory_format", "aten::empty_strided", "aten::_copy_from", "aten::_copy_from_and_resize",
      "aten::_local_scalar_dense", "aten::resize_", "aten::set_.source_Storage",
      "aten::set_.source_Storage_storage_offset", "aten::set_.source_Tensor", "aten::set_", "aten::as_strided",
      "aten::view", "aten::_reshape_alias", "aten::unfold", "aten::view_as_real", "aten::view_as_complex",
      "aten::is_pinned",
      // Redirected as copy_, after conversions that belong on this side.
      "aten::copy_"};
  return names;
}

}  // namespace

bool is_local(const std::string& name) { return local_names().contains(name); }

void register_local(torch::Library& aten) {
  aten.impl("empty.memory_format", TORCH_FN(empty));
  aten.impl("empty_strided", TORCH_FN(empty_strided));
  aten.impl("_copy_from", TORCH_FN(copy_from));
  aten.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  aten.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  aten.impl("resize_", TORCH_FN(resize_to));
  aten.impl("set_.source_Storage", TORCH_FN(set_storage));
  aten.impl("set_.source_Storage_storage_offset", TORCH_FN(set_strided));
  aten.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  aten.impl("set_", TORCH_FN(set_nothing));
  aten.impl("as_strided", TORCH_FN(as_strided));
  aten.impl("view", TORCH_FN(view));
  aten.impl("_reshape_alias", TORCH_FN(reshape_alias));
  aten.impl("unfold", TORCH_FN(unfold));
  aten.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  aten.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  aten.impl("is_pinned", TORCH_FN(is_pinned));
}

void register_fallthroughs(torch::Library& conjugate, torch::Library& negative) {
  // Their kernels see the bits and apply them; PyTorch's fallback would copy, and copying comes back here.
  for (const char* name : {"_copy_from", "_local_scalar_dense"}) {
    conjugate.impl(name, torch::CppFunction::makeFallthrough());
    negative.impl(name, torch::CppFunction::makeFallthrough());
  }
}

}  // namespace rouse::redirect
