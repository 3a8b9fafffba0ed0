// The bounds of a request, so that the executor records it, and its replay from a tape.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rouse::redirect {

// The digest of what these inputs look like, and of `what` (tape/signature.h).
std::array<std::uint64_t, 2> signature_of(std::string_view what, std::span<const at::Tensor> inputs);
// From here on the executor records. Throws where an input is not on the device.
void begin_request(std::uint64_t request, std::string_view what, std::span<const at::Tensor> inputs);
void end_request(std::uint64_t request, std::span<const at::Tensor> outputs);

struct ReplayAnswer {
  std::uint64_t outcome = 0;  // tape::Outcome
  std::vector<at::Tensor> outputs;
};
// One message, one answer. Throws what a failed operator of an earlier call left, as any wait does.
ReplayAnswer replay(std::string_view what, std::span<const at::Tensor> inputs);
// All tapes of the session, as JSON.
std::string describe_tapes();

}  // namespace rouse::redirect
