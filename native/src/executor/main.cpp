// rouse-session: one session in a process of its own, on descriptors that it inherits.
//
//   rouse-session RINGS SOCKET THREADS LIMIT_BYTES [--device=DEVICE] [--tapes=FOLDER] [--model=IMAGE] [LIBRARY...]
//
// RINGS: the memfd of the rings; SOCKET: a stream socket whose hang-up says that the client has ended.
// DEVICE: what it computes on, as PyTorch names it (cpu). Tapes are read from and written to FOLDER. IMAGE: a model's
// weights, mapped at the lowest address that models have; on the CPU only.
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "rouse/executor/allocator.h"
#include "rouse/executor/session.h"
#include "rouse/executor/weights_file.h"
#include "rouse/ring/watch.h"
#include "rouse/tape/recorder.h"

namespace {

using rouse::Code;
using rouse::Status;

constexpr std::uint64_t kSharedBytes = 4ull << 30;

bool number(const char* text, std::uint64_t most, std::uint64_t& value) {
  const auto* end = text + std::strlen(text);
  const auto parsed = std::from_chars(text, end, value);
  return parsed.ec == std::errc() && parsed.ptr == end && value <= most;
}

rouse::Result<rouse::executor::Compute> compute_on(const std::string& device) {
  try {
    return rouse::executor::Compute::make(c10::Device(device));
  } catch (const std::exception&) {
    return Status(Code::kInvalid, "'" + device + "' is no device of PyTorch's, as cpu or cuda:0 are");
  }
}

Status serve(int rings, int socket, int threads, std::uint64_t limit_bytes, const std::string& device,
             const std::string& tapes, const std::string& model) {
  auto channel = rouse::ring::Channel::open(rouse::ring::Side::kExecutor, rings);
  if (!channel.ok()) return channel.status();
  ROUSE_RETURN_IF_ERROR(rouse::executor::install_allocator(kSharedBytes));
  at::set_num_threads(threads);
  const auto compute = compute_on(device);
  if (!compute.ok()) return compute.status();
  if (!model.empty() && !compute.value().host())
    return Status(Code::kUnsupported, "a model's file is mapped on the CPU only, and not on " + device);
  if (!tapes.empty() && compute.value().device().is_cuda())
    return Status(Code::kUnsupported, "tapes of a GPU are kept by its architecture, which rouse-executor does");
  const c10::DeviceGuard on(compute.value().device());
  const c10::InferenceMode inference;
  const auto heap = rouse::executor::Heap::make(limit_bytes);
  const rouse::executor::UseHeap use(*heap);
  rouse::tape::RecorderOptions options;
  options.origin.torch_version = TORCH_VERSION;
  options.origin.device = device;
  options.folder = tapes;
  rouse::executor::WeightsFile weights;
  if (!model.empty()) {
    ROUSE_RETURN_IF_ERROR(weights.map(model, rouse::wire::kModelBase));
    options.origin.model_base = weights.base();
    options.origin.model_bytes = weights.bytes();
  }
  rouse::tape::Recorder recorder(options);
  rouse::executor::Engine engine({.max_bytes = limit_bytes, .observer = &recorder, .compute = compute.value()});
  recorder.attach(engine);
  if (weights.bytes() > 0) ROUSE_RETURN_IF_ERROR(engine.add_range({weights.base(), weights.bytes(), false}));
  if (!tapes.empty()) {
    std::size_t left_out = 0;
    ROUSE_RETURN_IF_ERROR(recorder.load_folder(left_out));
    if (left_out > 0) std::fprintf(stderr, "rouse-session: %zu tapes in %s do not fit here\n", left_out, tapes.c_str());
  }
  rouse::executor::Session session(*channel.value(), engine);
  rouse::ring::PeerWatch watch(*channel.value(), socket);
  while (true) {
    auto status = session.run(rouse::ring::Clock::time_point::max(), std::chrono::seconds(60));
    if (!status.ok()) return status;
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t rings, socket, threads, limit_bytes;
  if (argc < 5 || !number(argv[1], 1u << 20, rings) || !number(argv[2], 1u << 20, socket) ||
      !number(argv[3], 1024, threads) || threads == 0 || !number(argv[4], 1ull << 42, limit_bytes)) {
    std::fprintf(stderr,
                 "rouse-session RINGS SOCKET THREADS LIMIT_BYTES [--device=DEVICE] [--tapes=FOLDER] [--model=IMAGE] "
                 "[LIBRARY...]\n");
    return 2;
  }
  std::string device = "cpu", tapes, model;
  for (int i = 5; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--device=")) {
      device = argument.substr(9);
      continue;
    }
    if (argument.starts_with("--tapes=")) {
      tapes = argument.substr(8);
      continue;
    }
    if (argument.starts_with("--model=")) {
      model = argument.substr(8);
      continue;
    }
    // Libraries that register custom operators.
    if (!dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL)) {
      std::fprintf(stderr, "rouse-session: %s\n", dlerror());
      return 2;
    }
  }
  const auto status =
      serve(static_cast<int>(rings), static_cast<int>(socket), static_cast<int>(threads), limit_bytes, device, tapes,
            model);
  if (status.code() == Code::kPeerGone) return 0;
  std::fprintf(stderr, "rouse-session: %s\n", status.describe().c_str());
  return 1;
}
