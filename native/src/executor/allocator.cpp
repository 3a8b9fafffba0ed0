#include "rouse/executor/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <mutex>

namespace rouse::executor {
namespace {

// Above PyTorch's own, so that a later registration of its own does not take ours away.
constexpr std::uint8_t kPriority = 200;

thread_local UseHeap::Current current;
Heap* shared = nullptr;  // never ended: threads may free after the last static object

void* allocate_block(std::size_t bytes) {
  if (current.heap == nullptr) {
    auto block = shared->allocate(bytes);
    if (!block.ok()) C10_THROW_ERROR(OutOfMemoryError, block.status().describe());
    return block.value();
  }
  if (current.arena != nullptr) {
    if (void* planned = current.arena->next(bytes)) {
      ++current.planned;
      return planned;
    }
    ++current.unplanned;
  }
  auto block = current.log != nullptr ? current.log->allocate(*current.heap, bytes) : current.heap->allocate(bytes);
  if (!block.ok()) C10_THROW_ERROR(OutOfMemoryError, block.status().describe());
  return block.value();
}

// One deleter for every block, whoever gave it: oneDNN frees by address alone (raw_deallocate).
class SessionAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free_block, c10::Device(c10::DeviceType::CPU)};
    void* block = allocate_block(bytes);
    return {block, block, &free_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

}  // namespace

Status install_allocator(std::uint64_t shared_bytes) {
  static std::once_flag once;
  static SessionAllocator allocator;
  std::call_once(once, [&] {
    shared = Heap::make(shared_bytes, true).release();
    c10::SetCPUAllocator(&allocator, kPriority);
  });
  if (c10::GetCPUAllocator() != &allocator)
    return Status(Code::kRefused, "another CPU allocator is installed in PyTorch with a higher priority");
  return {};
}

UseHeap::UseHeap(Heap& heap, Arena* arena, LifetimeLog* log) : before_(current) { current = {&heap, arena, log, 0, 0}; }

UseHeap::~UseHeap() { current = before_; }

Heap* UseHeap::heap() { return shared == nullptr ? nullptr : current.heap; }

std::uint64_t UseHeap::planned() const { return current.planned; }

std::uint64_t UseHeap::unplanned() const { return current.unplanned; }

}  // namespace rouse::executor
