#include "rouse/tape/graph.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>
#include <utility>
#include <vector>

#include "cuda_graph.h"
#include "rouse/tape/guarded.h"
#include "rouse/base/text.h"
#include "rouse/tape/graph_impl.h"

namespace rouse::tape {

#if ROUSE_GRAPHS

namespace {

// All graphs of a process take what they need from one pool, so that what a replay needs meanwhile is there once, for
// the largest. Replays are given to one stream, one after the other, and what a graph's memory holds after its replay
// is copied from there before the next one comes.
constexpr at::MempoolId_t kPool{0, 0x72'6f75'7365};

// A graph whose capture did not end gives its memory back and stays: PyTorch's allocator of CUDA goes on asking it
// which streams it captures.
void keep(std::shared_ptr<at::GraphImplInterface> graph) {
  static auto* const lock = new std::mutex();
  static auto* const kept = new std::vector<std::shared_ptr<at::GraphImplInterface>>();
  (void)guarded("giving a graph's memory back", [&] {
    graph->reset();
    return Status();
  }).ok();
  const std::lock_guard guard(*lock);
  kept->push_back(std::move(graph));
}

}  // namespace

Status Graph::supported(const executor::Compute& compute) {
  const c10::DeviceType type = compute.device().type();
  if (compute.host()) return Status(Code::kUnsupported, "the CPU has no graphs");
  if (type == c10::DeviceType::CUDA) ROUSE_RETURN_IF_ERROR(register_cuda_graphs());
  if (at::has_graph_impl(type)) return {};
  return Status(Code::kUnsupported, text("this PyTorch has no graphs of ", compute.device().str()));
}

Result<Graph> Graph::capture(const executor::Compute& compute, const std::function<Status()>& body) {
  constexpr const char* kWhat = "a capture";
  std::shared_ptr<at::GraphImplInterface> graph;
  bool ended = false;
  const Status captured = guarded(kWhat, [&] {
    graph = at::create_graph_impl(compute.device().type());
    // CUDA captures no default stream. Nothing is done on this one, so that it needs no order with the others.
    const c10::impl::VirtualGuardImpl device(compute.device().type());
    const c10::StreamGuard side(device.getStreamFromGlobalPool(compute.device()));
    // Other threads of this process map memory and copy meanwhile.
    graph->capture_begin(kPool, at::GraphCaptureMode::ThreadLocal);
    const Status done = guarded(kWhat, body);
    // Whatever came of it: the stream has to end its capture.
    const Status closed = guarded(kWhat, [&] {
      graph->capture_end();
      return Status();
    });
    ended = closed.ok();
    return done.ok() ? closed : done;
  });
  if (captured.ok()) return Graph(std::move(graph));
  if (graph != nullptr && !ended) keep(std::move(graph));
  return captured;
}

Status Graph::replay() const {
  return guarded("a graph", [&] {
    captured_->replay();
    return Status();
  });
}

#else

Status Graph::supported(const executor::Compute& compute) {
  if (compute.host()) return Status(Code::kUnsupported, "the CPU has no graphs");
  return Status(Code::kUnsupported, "this was built with a PyTorch that has no graphs of any device");
}

Result<Graph> Graph::capture(const executor::Compute& compute, const std::function<Status()>&) {
  return supported(compute);
}

Status Graph::replay() const { return {}; }

#endif

}  // namespace rouse::tape
