// rouse-replay: a saved tape and mapped weights, without Python and without the model's code.
//
//   rouse-replay TAPE IMAGE THREADS < INPUTS > OUTPUTS
//
// INPUTS: for each request the bytes of each input's storage, one after the other; OUTPUTS: the same of each output's.
// A request is answered when all of it is there; the end of INPUTS ends it.
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <torch/version.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "rouse/executor/allocator.h"
#include "rouse/executor/weights_file.h"
#include "rouse/tape/shelf.h"
#include "rouse/wire/format.h"

namespace {

using rouse::Code;
using rouse::Status;

constexpr std::uint64_t kHeapBytes = std::uint64_t{1} << 36;

// False at the end of the input; what ends in the middle of a request is an error of the caller's.
bool read_all(void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = read(STDIN_FILENO, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_all(const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = write(STDOUT_FILENO, at, bytes);
    if (put <= 0) return false;
    at += put;
    bytes -= static_cast<std::size_t>(put);
  }
  return true;
}

Status serve(const std::string& path, const std::string& image, int threads) {
  ROUSE_RETURN_IF_ERROR(rouse::executor::install_allocator(kHeapBytes));
  at::set_num_threads(threads);
  const c10::InferenceMode inference;
  const auto heap = rouse::executor::Heap::make(kHeapBytes);
  const rouse::executor::UseHeap use(*heap);
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const auto file = std::as_bytes(std::span(bytes));
  rouse::executor::WeightsFile weights;
  ROUSE_RETURN_IF_ERROR(weights.map(image, rouse::wire::kModelBase));
  rouse::tape::Origin here;
  here.torch_version = TORCH_VERSION;
  here.device = "cpu";
  here.model_base = weights.base();
  here.model_bytes = weights.bytes();
  rouse::tape::Shelf shelf(here);
  const auto signature = shelf.load(file, rouse::tape::weights_at(weights.base(), weights.bytes()));
  if (!signature.ok()) return signature.status();
  std::vector<std::uint64_t> sizes;
  const auto tape = rouse::tape::load(file);
  if (!tape.ok()) return tape.status();
  sizes.resize(tape.value().inputs);
  for (const auto& place : tape.value().places)
    if (place.kind == rouse::tape::Class::kInput) sizes[place.value] = place.bytes;
  auto* allocator = c10::GetCPUAllocator();
  while (true) {
    std::vector<c10::Storage> inputs;
    for (const auto size : sizes) {
      inputs.emplace_back(c10::Storage::use_byte_size_t(), size, allocator->allocate(size), allocator, true);
      if (size != 0 && !read_all(inputs.back().mutable_data(), size)) return {};
    }
    auto played = shelf.replay(signature.value(), inputs);
    if (!played.ok()) return played.status();
    if (played.value().outcome != rouse::tape::Outcome::kDone)
      return Status(Code::kRefused, "the tape's guards do not hold for these inputs");
    for (const auto& output : played.value().outputs)
      if (!write_all(output.data(), output.nbytes())) return Status(Code::kPeerGone, "nobody reads the outputs");
    if (sizes.empty()) return {};
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int threads = count == 4 ? std::atoi(arguments[3]) : 0;
  if (threads < 1) {
    std::fprintf(stderr, "rouse-replay TAPE IMAGE THREADS < INPUTS > OUTPUTS\n");
    return 2;
  }
  const Status status = serve(arguments[1], arguments[2], threads);
  if (status.ok()) return 0;
  std::fprintf(stderr, "rouse-replay: %s\n", status.describe().c_str());
  return 1;
}
