// Kernels of quantised tensors that the client runs itself. Their numbers are copied as those of a dense tensor over
// the same storage; how they stand for real ones travels with each call.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_quantized_native.h>
#include <ATen/ops/q_per_channel_axis_native.h>
#include <ATen/ops/q_per_channel_scales_native.h>
#include <ATen/ops/q_per_channel_zero_points_native.h>
#include <ATen/ops/q_scale_native.h>
#include <ATen/ops/q_zero_point_native.h>
#include <ATen/ops/qscheme_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>

#include <set>
#include <string>

#include "device.h"
#include "local.h"
#include "rouse/quantized/quantization.h"

namespace rouse::redirect {
namespace {

using at::Tensor;

c10::ScalarType checked_dtype(std::optional<at::ScalarType> dtype) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      dtype && quantized::known(*dtype),
      "the rouse device has quantised tensors of qint8, quint8 and qint32; keep others on the CPU");
  return *dtype;
}

Tensor over(const Tensor& dense, at::QuantizerPtr quantizer) {
  auto tensor = at::detail::make_tensor<at::QTensorImpl>(
      c10::Storage(dense.storage()), c10::DispatchKeySet(c10::DispatchKey::QuantizedPrivateUse1), dense.dtype(),
      std::move(quantizer));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(dense.sizes(), dense.strides(), dense.storage_offset());
  return tensor;
}

Tensor make(c10::IntArrayRef size, c10::ScalarType dtype, std::optional<at::MemoryFormat> format,
            at::QuantizerPtr quantizer) {
  return over(at::detail::empty_generic(size, &rouse_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                        dtype, format),
              std::move(quantizer));
}

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return make(size, checked_dtype(dtype), format, at::make_unknown_quantizer(*dtype));
}

Tensor empty_affine(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                    std::optional<at::Device>, std::optional<bool>, double scale, std::int64_t zero_point,
                    std::optional<at::MemoryFormat> format) {
  return make(size, checked_dtype(dtype), format, at::make_per_tensor_affine_quantizer(scale, zero_point, *dtype));
}

Tensor empty_per_channel(c10::IntArrayRef size, const Tensor& scales, const Tensor& zero_points, std::int64_t axis,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>,
                         std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return make(size, checked_dtype(dtype), format,
              at::make_per_channel_affine_quantizer(scales.cpu(), zero_points.cpu(), axis, *dtype));
}

// The numbers as they are stored, as a dense tensor over the same storage.
Tensor stored(const Tensor& tensor) {
  const auto keys = c10::DispatchKeySet(tensor.device().is_cpu() ? c10::DispatchKey::CPU
                                                                 : c10::DispatchKey::PrivateUse1);
  auto dense = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()), keys, c10::scalarTypeToTypeMeta(c10::toUnderlying(tensor.scalar_type())));
  dense.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return dense;
}

// What PyTorch's own copy_ does on the CPU, with its words.
Tensor copy_quantized(const Tensor& from, const Tensor& to, bool non_blocking) {
  TORCH_CHECK(to.is_quantized(), "Copying from quantized Tensor to non-quantized Tensor is not allowed, please use "
                                 "dequantize to get a float Tensor from a quantized Tensor");
  if (!from.is_quantized()) {
    TORCH_CHECK(from.scalar_type() == at::kFloat, "Quantized copy only works with kFloat as source Tensor, not ",
                from.scalar_type());
    if (to.device().is_cpu()) return to.copy_(from.cpu());
    copy_there(to, from.to(to.device()));
    return to;
  }
  TORCH_CHECK(from.qscheme() == to.qscheme(), "Quantized Copy only works with same qscheme");
  TORCH_CHECK(from.scalar_type() == to.scalar_type(), "Quantized Copy only works with same scalar type");
  checked_dtype(from.scalar_type());
  copy_from(stored(from), stored(to), non_blocking);
  at::set_quantizer_(to, at::get_qtensorimpl(from)->quantizer());
  return to;
}

Tensor as_strided(const Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                  std::optional<std::int64_t> offset) {
  return at::native::as_strided_qtensorimpl(self, size, stride, offset);
}

// Held on the host; given out where the tensor is, as PyTorch does.
Tensor scales(const Tensor& self) { return at::native::q_per_channel_scales(self).to(self.device()); }
Tensor zero_points(const Tensor& self) { return at::native::q_per_channel_zero_points(self).to(self.device()); }

bool is_pinned(const Tensor&, std::optional<at::Device>) { return false; }

}  // namespace

bool is_local_quantized(const std::string& name) {
  static const std::set<std::string> names = {
      "aten::empty.memory_format", "aten::_empty_affine_quantized", "aten::_empty_per_channel_affine_quantized",
      "aten::empty_like", "aten::empty_quantized", "aten::_copy_from", "aten::resize_", "aten::set_.source_Storage",
      "aten::set_.source_Storage_storage_offset", "aten::set_.source_Tensor", "aten::as_strided", "aten::view",
      "aten::_reshape_alias", "aten::unfold", "aten::q_scale", "aten::q_zero_point", "aten::qscheme",
      "aten::q_per_channel_scales", "aten::q_per_channel_zero_points", "aten::q_per_channel_axis", "aten::is_pinned",
      // Comes back as _copy_from.
      "aten::copy_"};
  return names.contains(name);
}

void register_local_quantized(torch::Library& aten) {
  aten.impl("empty.memory_format", TORCH_FN(empty));
  aten.impl("_empty_affine_quantized", TORCH_FN(empty_affine));
  aten.impl("_empty_per_channel_affine_quantized", TORCH_FN(empty_per_channel));
  aten.impl("empty_like", TORCH_FN(at::native::empty_like_quantized));
  aten.impl("empty_quantized", TORCH_FN(at::native::empty_quantized));
  aten.impl("_copy_from", TORCH_FN(copy_quantized));
  aten.impl("resize_", TORCH_FN(resize_to));
  aten.impl("set_.source_Storage", TORCH_FN(set_storage));
  aten.impl("set_.source_Storage_storage_offset", TORCH_FN(set_strided));
  aten.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  aten.impl("as_strided", TORCH_FN(as_strided));
  aten.impl("view", TORCH_FN(at::native::view));
  aten.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  aten.impl("unfold", TORCH_FN(at::native::unfold));
  aten.impl("q_scale", TORCH_FN(at::native::q_scale_quant));
  aten.impl("q_zero_point", TORCH_FN(at::native::q_zero_point_quant));
  aten.impl("qscheme", TORCH_FN(at::native::qscheme_quant));
  aten.impl("q_per_channel_scales", TORCH_FN(scales));
  aten.impl("q_per_channel_zero_points", TORCH_FN(zero_points));
  aten.impl("q_per_channel_axis", TORCH_FN(at::native::q_per_channel_axis));
  aten.impl("is_pinned", TORCH_FN(is_pinned));
}

}  // namespace rouse::redirect
