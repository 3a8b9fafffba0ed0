// PyTorch's class of CUDA's graphs is found by its functions' names and called as it is declared: against a class of
// the same declaration in this program.
#include "cuda_graph.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "rouse/tape/graph_impl.h"

enum cudaStreamCaptureMode { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

namespace at::cuda {
namespace {

std::vector<std::string> called;

}  // namespace

// As ATen/cuda/CUDAGraph.h has it, as far as it is used.
struct __attribute__((visibility("default"))) CUDAGraph {
  explicit CUDAGraph(bool keep_graph);
  ~CUDAGraph();
  void capture_begin(std::pair<unsigned long long, unsigned long long> pool, cudaStreamCaptureMode mode);
  void capture_end();
  void replay();
  void reset();

  std::vector<int> own{1, 2, 3};
};

CUDAGraph::CUDAGraph(bool keep_graph) { called.push_back(keep_graph ? "keeping" : "made"); }
CUDAGraph::~CUDAGraph() { called.push_back("gone"); }
void CUDAGraph::capture_begin(std::pair<unsigned long long, unsigned long long> pool, cudaStreamCaptureMode mode) {
  called.push_back("begin " + std::to_string(pool.first) + " " + std::to_string(pool.second) + " " +
                   std::to_string(mode));
}
void CUDAGraph::capture_end() { throw std::runtime_error("it captures nothing"); }
void CUDAGraph::replay() { called.push_back("replay " + std::to_string(own.back())); }
void CUDAGraph::reset() { called.push_back("reset"); }

}  // namespace at::cuda

namespace rouse::tape {
namespace {

TEST(CudaGraph, IsPyTorchsOwnClassBehindItsInterface) {
#if ROUSE_GRAPHS
  EXPECT_FALSE(at::has_graph_impl(c10::DeviceType::CUDA));
  ASSERT_TRUE(register_cuda_graphs().ok()) << register_cuda_graphs().text();
  ASSERT_TRUE(at::has_graph_impl(c10::DeviceType::CUDA));
  {
    const auto graph = at::create_graph_impl(c10::DeviceType::CUDA);
    graph->capture_begin({5, 6}, at::GraphCaptureMode::ThreadLocal);
    graph->capture_begin({0, 0}, at::GraphCaptureMode::Relaxed);
    graph->capture_begin();
    EXPECT_THROW(graph->capture_end(), std::runtime_error);
    graph->replay();
    graph->reset();
    EXPECT_THROW(graph->instantiate(), c10::NotImplementedError);
  }
  EXPECT_EQ(at::cuda::called, (std::vector<std::string>{"made", "begin 5 6 1", "begin 0 0 2", "begin 0 0 0",
                                                        "replay 3", "reset", "gone"}));
#else
  GTEST_SKIP() << "this PyTorch has no graphs of any device";
#endif
}

}  // namespace
}  // namespace rouse::tape
