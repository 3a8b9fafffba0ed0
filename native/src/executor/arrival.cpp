#include "rouse/executor/arrival.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

namespace rouse::executor {
namespace {

// Beyond so many rows at once, all of the table is waited for: looking at each costs more than it saves.
constexpr std::int64_t kMostRows = 1 << 16;

// The bytes of one row where rows follow each other without gaps, else 0.
std::uint64_t row_bytes(const TensorSpec& table) {
  if (table.sizes.empty() || table.sizes[0] == 0) return 0;
  std::int64_t elements = 1;
  for (std::size_t i = table.sizes.size(); i-- > 1;) {
    if (table.sizes[i] > 1 && table.strides[i] != elements) return 0;
    elements *= table.sizes[i];
  }
  if (table.sizes[0] > 1 && table.strides[0] != elements) return 0;
  return static_cast<std::uint64_t>(elements) * c10::elementSize(table.dtype);
}

template <typename T>
std::vector<std::int64_t> unique_rows(const at::Tensor& rows) {
  // From a device that waits for what was to write the rows; only as long as weights are still on their way.
  const at::Tensor here = rows.cpu();
  const T* const data = here.const_data_ptr<T>();
  std::vector<std::int64_t> found(data, data + rows.numel());
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

// Empty where all of the table has to be there.
std::vector<std::int64_t> rows_of(const at::Tensor& rows, std::int64_t count) {
  if (rows.numel() > kMostRows || !rows.is_contiguous()) return {};
  std::vector<std::int64_t> found;
  if (rows.scalar_type() == c10::ScalarType::Long) found = unique_rows<std::int64_t>(rows);
  if (rows.scalar_type() == c10::ScalarType::Int) found = unique_rows<std::int32_t>(rows);
  // A row that there is not is an error of the operator's own.
  if (!found.empty() && (found.front() < 0 || found.back() >= count)) return {};
  return found;
}

}  // namespace

Status wait_for_slot(Residency& residency, const Operation& operation, std::uint32_t slot, std::uint64_t address,
                     std::span<const at::Tensor> tensors) {
  const TensorSpec& spec = operation.slots()[slot].spec;
  if (operation.gather() && operation.gather()->table == slot) {
    const std::uint64_t row = row_bytes(spec);
    if (row != 0) {
      const std::vector<std::int64_t> rows = rows_of(tensors[operation.gather()->rows], spec.sizes[0]);
      const std::uint64_t table = address + static_cast<std::uint64_t>(spec.offset) * c10::elementSize(spec.dtype);
      if (!rows.empty()) return residency.wait_rows(table, row, rows);
    }
  }
  return residency.wait_ready(address, spec.required_bytes);
}

}  // namespace rouse::executor
