#include "rouse/serve/tensors.h"

#include <algorithm>
#include <array>
#include <utility>

namespace rouse::serve {

namespace {

constexpr std::array<std::pair<std::string_view, uint64_t>, 13> kElementBytes{{
    {"BOOL", 1},
    {"UINT8", 1},
    {"UINT16", 2},
    {"UINT32", 4},
    {"UINT64", 8},
    {"INT8", 1},
    {"INT16", 2},
    {"INT32", 4},
    {"INT64", 8},
    {"FP16", 2},
    {"BF16", 2},
    {"FP32", 4},
    {"FP64", 8},
}};
// As rouse_contracts.tensors bounds it.
constexpr uint64_t kMaxElements = 1ull << 40;

Status check(const TensorView& tensor) {
  const std::string name(tensor.name.substr(0, 100));
  if (tensor.datatype == "BYTES") {
    return Status(Code::kUnsupported, "tensor '" + name + "' is of BYTES, which tapes do not take");
  }
  const auto* const type = std::find_if(kElementBytes.begin(), kElementBytes.end(),
                                        [&](const auto& entry) { return entry.first == tensor.datatype; });
  if (type == kElementBytes.end()) {
    return Status(Code::kInvalid, "tensor '" + name + "' has an unknown datatype");
  }
  uint64_t count = 1;
  for (const int64_t size : tensor.shape) {
    if (size < 0) return Status(Code::kInvalid, "tensor '" + name + "' has a negative size in its shape");
    // Without overflow: each factor is bounded before it is multiplied.
    if (size != 0 &&
        (static_cast<uint64_t>(size) > kMaxElements || count > kMaxElements / static_cast<uint64_t>(size))) {
      return Status(Code::kInvalid, "tensor '" + name + "' has too many elements");
    }
    count *= static_cast<uint64_t>(size);
  }
  if (tensor.data.size() != count * type->second) {
    return Status(Code::kInvalid, "tensor '" + name + "' needs " + std::to_string(count * type->second) +
                                      " bytes, got " + std::to_string(tensor.data.size()));
  }
  return {};
}

Result<TensorView> read_tensor(Bytes message) {
  TensorView tensor;
  std::vector<uint64_t> shape;
  ProtoReader reader(message, "Tensor");
  while (reader.next()) {
    switch (reader.field()) {
      case 1:
        tensor.name = reader.text();
        break;
      case 2:
        tensor.datatype = reader.text();
        break;
      case 3:
        reader.varints(shape, kMaxDimensions);
        break;
      case 4:
        tensor.data = reader.bytes();
        break;
      default:
        break;
    }
  }
  ROUSE_RETURN_IF_ERROR(reader.status());
  tensor.shape.assign(shape.begin(), shape.end());
  ROUSE_RETURN_IF_ERROR(check(tensor));
  return tensor;
}

}  // namespace

Result<std::vector<TensorView>> read_tensors(Bytes message) {
  std::vector<TensorView> tensors;
  ProtoReader reader(message, "TensorBatch");
  while (reader.next()) {
    if (reader.field() != 1) continue;
    if (tensors.size() == kMaxTensors) {
      return Status(Code::kInvalid, "a batch has more than " + std::to_string(kMaxTensors) + " tensors");
    }
    Result<TensorView> tensor = read_tensor(reader.bytes());
    ROUSE_RETURN_IF_ERROR(reader.status());
    if (!tensor.ok()) return tensor.status();
    for (const TensorView& other : tensors) {
      if (other.name == tensor.value().name) return Status(Code::kInvalid, "two tensors of a batch have one name");
    }
    tensors.push_back(std::move(tensor).value());
  }
  ROUSE_RETURN_IF_ERROR(reader.status());
  return tensors;
}

std::string write_tensors(std::span<const TensorView> tensors) {
  ProtoWriter batch;
  size_t size = 0;
  for (const TensorView& tensor : tensors) size += tensor.data.size() + 512;
  batch.reserve(size);
  for (const TensorView& tensor : tensors) {
    ProtoWriter one;
    one.text(1, tensor.name).text(2, tensor.datatype).packed(3, tensor.shape).text(4, as_text(tensor.data));
    batch.element(1, one.out());
  }
  return std::move(batch).out();
}

Result<ExecuteRequest> read_execute(Bytes message) {
  ExecuteRequest request;
  Bytes inputs;
  ProtoReader reader(message, "ExecuteRequest");
  while (reader.next()) {
    switch (reader.field()) {
      case 1:
        request.lease_id = reader.text();
        break;
      case 2:
        request.request_id = reader.text();
        break;
      case 3:
        inputs = reader.bytes();
        break;
      case 4:
        if (request.output_names.size() == kMaxTensors) {
          return Status(Code::kInvalid, "a request names more than " + std::to_string(kMaxTensors) + " outputs");
        }
        request.output_names.push_back(reader.text());
        break;
      default:
        break;
    }
  }
  ROUSE_RETURN_IF_ERROR(reader.status());
  Result<std::vector<TensorView>> tensors = read_tensors(inputs);
  if (!tensors.ok()) return tensors.status();
  request.inputs = std::move(tensors).value();
  return request;
}

}  // namespace rouse::serve
