// What other processes send to an executor over its link: whatever it holds, each reader gives values within its bounds
// or says why not. The input is a stream of frames as a connection receives it, in pieces; each frame's body is read as
// every message there is.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core_messages.h"
#include "rouse/serve/frames.h"
#include "rouse/serve/tensors.h"

namespace {

using rouse::serve::Bytes;

constexpr std::size_t kMaxBody = 1 << 14;

// A refusal has words.
template <typename Read>
void said(const Read& read) {
  if (!read.ok() && read.status().text().empty()) std::abort();
}

bool within(Bytes part, Bytes whole) {
  return part.empty() || (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

void read_bodies(Bytes body) {
  said(rouse::serve::read_map_model(body));
  said(rouse::serve::read_id(body, "UnmapModelRequest"));
  said(rouse::serve::read_open_session(body, rouse::serve::Config{}));
  said(rouse::serve::read_load_tapes(body));
  said(rouse::serve::read_save_tapes(body));
  const auto request = rouse::serve::read_execute(body);
  said(request);
  if (request.ok()) {
    for (const auto& tensor : request.value().inputs) {
      if (!within(tensor.data, body)) std::abort();
    }
  }
  const auto tensors = rouse::serve::read_tensors(body);
  said(tensors);
  // What was read can be written, and is the same when read again.
  if (tensors.ok()) {
    const std::string again = rouse::serve::write_tensors(tensors.value());
    const auto twice = rouse::serve::read_tensors(rouse::serve::as_bytes(again));
    if (!twice.ok() || twice.value().size() != tensors.value().size()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  rouse::serve::FrameReader reader(kMaxBody);
  // The sizes of the pieces come from the input, so that frames are cut everywhere.
  std::size_t piece = size > 0 ? 1 + data[size - 1] : 1;
  while (size > 0) {
    const auto space = reader.space();
    if (space.empty()) std::abort();
    const std::size_t count = std::min({space.size(), size, piece});
    std::memcpy(space.data(), data, count);
    reader.received(count);
    data += count, size -= count, piece = piece * 7 % 4096 + 1;
    while (true) {
      const auto frame = reader.next();
      if (!frame.ok()) {
        said(frame);
        return 0;
      }
      if (!frame.value()) break;
      if (frame.value()->body.size() > kMaxBody || frame.value()->head.size() > rouse::serve::kMaxHeadBytes) std::abort();
      said(rouse::serve::read_call_head(frame.value()->head));
      read_bodies(frame.value()->body);
    }
  }
  return 0;
}
