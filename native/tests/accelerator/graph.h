// Graphs of the stand-in: what its kernels do while a thread captures is noted, undone at the capture's end, and done
// again by each replay. Memory that a capture takes is the graph's. As on CUDA, waiting for the device and copies from
// and to the host fail, and their capture with them. It proves what is asked of a graph, and nothing about the speed or
// the rules of a real one.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace rouse::accelerator {

class Capture {
 public:
  // This thread's; null: it does not capture.
  static Capture* current();

  // Whoever holds it, or the graph, keeps it.
  c10::DataPtr allocate(std::size_t bytes);
  // What lies there is put back at the end, unless it is the graph's memory. Before a kernel touches it.
  void keep(const c10::Storage& storage);
  void add(std::function<void()> again) { calls_.push_back(std::move(again)); }
  // Throws, and fails the capture: no graph holds `what`.
  [[noreturn]] void refuse(const char* what);

 private:
  friend class StandInGraph;
  class Pool;

  std::shared_ptr<Pool> pool_;
  std::vector<std::function<void()>> calls_;
  std::vector<std::pair<std::byte*, std::vector<std::byte>>> before_;  // where, and what lay there
  bool refused_ = false;
};

// The stand-in itself is registered already.
void register_graphs();

}  // namespace rouse::accelerator
