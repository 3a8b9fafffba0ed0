// Messages of a client: whatever they hold, the engine answers or says why the session has to end.
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "rouse/executor/allocator.h"
#include "rouse/executor/engine.h"

namespace {

class Discard final : public rouse::executor::Responder {
 public:
  rouse::Status send(std::span<const std::byte> head, std::span<const std::byte> body) override {
    rouse::wire::Header header;
    std::memcpy(&header, head.data(), sizeof(header));
    // What is sent must add up: the client would end the session.
    if (header.size != head.size() + rouse::wire::padded(body.size())) std::abort();
    return {};
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool bounded = rouse::executor::install_allocator(std::uint64_t{64} << 20).ok();
  if (!bounded) std::abort();
  const auto heap = rouse::executor::Heap::make(std::uint64_t{64} << 20);
  const rouse::executor::UseHeap use(*heap);
  const c10::InferenceMode inference;
  rouse::executor::Engine engine({.max_bytes = 1 << 20, .compute = {}});
  Discard responder;
  std::vector<std::uint64_t> message;
  while (size >= 8) {
    std::uint32_t said;
    std::memcpy(&said, data, sizeof(said));
    const std::size_t bytes = std::clamp<std::size_t>(said / 8 * 8, 8, size / 8 * 8);
    message.assign(bytes / 8, 0);
    std::memcpy(message.data(), data, bytes);
    const auto handled = engine.handle(std::as_bytes(std::span(message)), responder);
    if (!handled.ok() && handled.text().empty()) std::abort();
    if (engine.bytes() > 1ull << 40) std::abort();
    data += bytes;
    size -= bytes;
  }
  return 0;
}
