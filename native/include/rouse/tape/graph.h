// What a device is given to do once, captured as a graph of the device ("CUDA graph"): from then on the device is given
// it whole, and not operator by operator.
#pragma once

#include <functional>
#include <memory>

#include "rouse/base/status.h"
#include "rouse/executor/compute.h"

namespace at {
struct GraphImplInterface;
}

namespace rouse::tape {

// A value: copying it copies a name.
class Graph {
 public:
  // UNSUPPORTED, with why: the device has no graphs, or this PyTorch has none of it.
  static Status supported(const executor::Compute& compute);
  // Captures what `body` gives a device that is supported to do, on a stream of its own; nothing of it is done. Memory
  // that `body` takes is the graph's; all other memory that it uses has to be where it is at each replay. FAILED with
  // why: `body` failed, or did what no graph holds, as waiting for the device; nothing is left of it then.
  static Result<Graph> capture(const executor::Compute& compute, const std::function<Status()>& body);

  // Has the device do it, in the order of this thread's stream. Errors come late, as any of such a device.
  Status replay() const;

 private:
  explicit Graph(std::shared_ptr<at::GraphImplInterface> captured) : captured_(std::move(captured)) {}

  std::shared_ptr<at::GraphImplInterface> captured_;
};

}  // namespace rouse::tape
