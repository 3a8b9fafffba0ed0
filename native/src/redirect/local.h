// Kernels that the client runs itself: allocation, views, copies over the border, reading one value.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <string>

namespace rouse::redirect {

// Registers them under PrivateUse1, and what must pass through the conjugate and negative keys.
void register_local(torch::Library& aten);
void register_fallthroughs(torch::Library& conjugate, torch::Library& negative);
// Those of quantised tensors, under QuantizedPrivateUse1.
void register_local_quantized(torch::Library& aten);
// Whether the operator has a kernel here.
bool is_local(const std::string& name);
bool is_local_quantized(const std::string& name);

// Kernels of dense tensors that those of quantised ones take, too.
//
// Runs aten::copy_ in the executor.
void copy_there(const at::Tensor& to, const at::Tensor& from);
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking);
const at::Tensor& resize_to(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format);
at::Tensor& set_strided(at::Tensor& self, at::Storage source, std::int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride);
at::Tensor& set_storage(at::Tensor& self, at::Storage source);
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source);

}  // namespace rouse::redirect
