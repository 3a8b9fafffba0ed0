#include "tensor_at.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "device.h"
#include "rouse/redirect/client.h"

namespace rouse::redirect {

at::Tensor tensor_at(std::uint64_t address, at::ScalarType dtype, const std::vector<std::int64_t>& sizes) {
  TORCH_CHECK_VALUE(address >= wire::kModelBase, "no address of a model: models lie from ", wire::kModelBase, " on");
  std::uint64_t bytes = c10::elementSize(dtype);
  for (const auto size : sizes) {
    TORCH_CHECK_VALUE(size >= 0 && !__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes),
                      "a tensor of these sizes cannot be");
  }
  Client::get().bind(address, bytes);
  auto tensor = at::empty({0}, at::TensorOptions(rouse_device()).dtype(dtype));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(make_storage(address, bytes));
  impl->set_sizes_contiguous(sizes);
  return tensor;
}

}  // namespace rouse::redirect
