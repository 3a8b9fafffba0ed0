#include "rouse/executor/warm_up.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>
#include <exception>
#include <string>

#include "rouse/executor/allocator.h"
#include "rouse/executor/heap.h"

namespace rouse::executor {
namespace {

// Far more than these operators take.
constexpr std::uint64_t kHeapBytes = 64u << 20;

void products(const at::TensorOptions& where) {
  const at::Tensor rows = at::ones({8, 32}, where), matrix = at::ones({64, 32}, where);
  const at::Tensor batch = at::ones({4, 8, 8}, where);
  at::linear(rows, matrix, at::ones({64}, where));
  at::mm(rows, matrix.t());
  at::addmm(at::ones({64}, where), rows, matrix.t());
  at::bmm(batch, batch.transpose(1, 2));
  at::baddbmm(batch, batch, batch);
  const at::Tensor heads = at::ones({1, 4, 8, 8}, where);
  at::scaled_dot_product_attention(heads, heads, heads);
}

void convolutions(const at::TensorOptions& where) {
  const at::Tensor image = at::ones({1, 8, 32, 32}, where), statistics = at::ones({8}, where);
  for (const std::int64_t stride : {1, 2}) {
    for (const std::int64_t groups : {1, 8}) {
      at::conv2d(image, at::ones({8, 8 / groups, 3, 3}, where), {}, stride, 1, 1, groups);
    }
    at::conv2d(image, at::ones({8, 8, 1, 1}, where), {}, stride);
  }
  at::batch_norm(image, statistics, statistics, statistics, statistics, false, 0.1, 1e-5, false);
  at::max_pool2d(image, {3, 3}, {2, 2}, {1, 1});
  at::avg_pool2d(image, {2, 2});
  at::adaptive_avg_pool2d(image, {1, 1});
}

void elements(const at::TensorOptions& where) {
  const at::Tensor x = at::ones({2, 8, 32}, where), y = x + 1, weight = at::ones({32}, where);
  for (const at::Tensor& each : {x - y, x * y, x / y, -x, x.pow(2), x.rsqrt(), x.sqrt(), x.exp(), x.cos(), x.sin()}) {
    at::add(each, y);
  }
  for (const at::Tensor& each : {x.relu(), at::gelu(x), x.sigmoid(), x.tanh(), at::silu(x)}) at::mul(each, y);
  x.to(at::kHalf).to(at::kFloat);
  at::where(x > 0, x, y);
  at::layer_norm(x, {32}, weight, weight);
  at::softmax(x, -1);
  at::mean(x, -1, true);
  at::sum(x);
  at::argmax(x, -1);
  at::cat({x, y}, -1);
  at::embedding(at::ones({16, 32}, where), at::zeros({1, 8}, where.dtype(at::kLong)));
  at::index_select(x, 1, at::zeros({2}, where.dtype(at::kLong)));
  x.transpose(1, 2).contiguous();
  x.expand({4, 2, 8, 32}).contiguous();
  at::triu(at::full({8, 8}, 1.0, where));
  at::arange(8, where).to(at::kFloat);
}

}  // namespace

Status warm_up(const Compute& compute) try {
  const c10::InferenceMode inference;
  const c10::DeviceGuard on(compute.device());
  const auto heap = Heap::make(kHeapBytes);
  const UseHeap use(*heap);
  const at::TensorOptions where(compute.device());
  products(where);
  convolutions(where);
  elements(where);
  return compute.synchronize();
} catch (const std::exception& error) {
  return Status(Code::kFailed, std::string("PyTorch's operators do not run here: ") + error.what());
}

}  // namespace rouse::executor
