#include "cuda_graph.h"

#include "rouse/tape/graph_impl.h"

#if ROUSE_GRAPHS

#include <dlfcn.h>

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>

#include "rouse/base/text.h"

namespace rouse::tape {
namespace {

// at::cuda::CUDAGraph, by the names of its functions in libtorch_cuda.so, which whoever computes on CUDA has loaded
// (Compute::make): its header needs CUDA's. A name says the types of all parameters: a release that changed them has
// none of that name.
struct Api {
  void (*construct)(void* graph, bool keep_graph);
  void (*destroy)(void* graph);
  void (*capture_begin)(void* graph, at::MempoolId_t pool, int mode);
  void (*capture_end)(void* graph);
  void (*replay)(void* graph);
  void (*reset)(void* graph);
};

// Far more than the class has: 344 in 2.13.
constexpr std::size_t kGraphBytes = 8192;

// As cudaStreamCaptureMode has them.
constexpr int kGlobal = 0, kThreadLocal = 1, kRelaxed = 2;

int mode_of(at::GraphCaptureMode mode) {
  if (mode == at::GraphCaptureMode::ThreadLocal) return kThreadLocal;
  return mode == at::GraphCaptureMode::Relaxed ? kRelaxed : kGlobal;
}

Api& api() {
  static Api found{};
  return found;
}

class CudaGraph final : public at::GraphImplInterface {
 public:
  explicit CudaGraph(const at::GraphImplArgs& arguments) { api().construct(graph_, arguments.keep_graph); }
  ~CudaGraph() override { api().destroy(graph_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode mode) override {
    api().capture_begin(graph_, pool, mode_of(mode));
  }
  void capture_end() override { api().capture_end(graph_); }
  void replay() override { api().replay(graph_); }
  void reset() override { api().reset(graph_); }
  // What nobody here asks for.
  void instantiate() override { not_there(); }
  at::MempoolId_t pool() const override { not_there(); }
  void enable_debug_mode() override { not_there(); }
  void debug_dump(const std::string&) override { not_there(); }

 private:
  [[noreturn]] static void not_there() { C10_THROW_ERROR(NotImplementedError, "not a part of this graph"); }

  alignas(std::max_align_t) std::byte graph_[kGraphBytes];
};

Status find_and_register() {
  const std::string key = c10::DeviceTypeName(c10::DeviceType::CUDA, /*lower_case=*/false);
  if (at::GraphImplRegistry()->Has(key)) return {};
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(RTLD_DEFAULT, name));
    if (function == nullptr) missing = name;
  };
  Api& functions = api();
  find(functions.construct, "_ZN2at4cuda9CUDAGraphC1Eb");
  find(functions.destroy, "_ZN2at4cuda9CUDAGraphD1Ev");
  find(functions.capture_begin, "_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode");
  find(functions.capture_end, "_ZN2at4cuda9CUDAGraph11capture_endEv");
  find(functions.replay, "_ZN2at4cuda9CUDAGraph6replayEv");
  find(functions.reset, "_ZN2at4cuda9CUDAGraph5resetEv");
  if (!missing.empty())
    return Status(Code::kUnsupported, text("this PyTorch's graphs of CUDA are not those known here: no ", missing));
  at::GraphImplRegistry()->Register(key, [](const at::GraphImplArgs& arguments) {
    return std::unique_ptr<at::GraphImplInterface>(std::make_unique<CudaGraph>(arguments));
  });
  return {};
}

}  // namespace

Status register_cuda_graphs() {
  static const Status registered = find_and_register();
  return registered;
}

}  // namespace rouse::tape

#endif
