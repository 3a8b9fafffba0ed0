// The tensors of a request and of its answer, as rouse.functions.v1.TensorBatch carries them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rouse/base/status.h"
#include "rouse/serve/protobuf.h"

namespace rouse::serve {

inline constexpr size_t kMaxTensors = 256;
inline constexpr size_t kMaxDimensions = 64;

// A dense tensor, row-major, little-endian; views into the message it was read from.
struct TensorView {
  std::string_view name;
  std::string_view datatype;   // As "FP32".
  std::vector<int64_t> shape;  // No size is negative.
  Bytes data;                  // Exactly what datatype and shape need.
};

// INVALID for what is no batch: an unknown datatype, a size or a length that does not agree, two of one name. BYTES
// has no fixed size and is not carried by tapes: kUnsupported.
Result<std::vector<TensorView>> read_tensors(Bytes message);
std::string write_tensors(std::span<const TensorView> tensors);

// ExecuteRequest of rouse.device.v1, as far as a tape needs it.
struct ExecuteRequest {
  std::string_view lease_id;
  std::string_view request_id;
  std::vector<TensorView> inputs;
  std::vector<std::string_view> output_names;
};
Result<ExecuteRequest> read_execute(Bytes message);

}  // namespace rouse::serve
