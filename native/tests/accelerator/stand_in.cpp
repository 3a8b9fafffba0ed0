#include "stand_in.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstring>

#include "graph.h"
#include "kernels.h"
#include "memory.h"
#include "state.h"

namespace rouse::accelerator {

State& state() {
  static auto* made = new State();
  return *made;
}

c10::StreamId& current_stream() {
  thread_local c10::StreamId current = 0;
  return current;
}

void wait_for_device() {
  if (Capture* const capture = Capture::current()) capture->refuse("waiting for the device");
  ++state().synchronisations;
  const std::string failed = std::exchange(state().failed, std::string());
  TORCH_CHECK(failed.empty(), failed);
}

namespace {

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (Capture* const capture = Capture::current()) return capture->allocate(bytes);
    void* const made = bytes == 0 ? nullptr : Memory::get().allocate(bytes);
    if (made == nullptr && bytes != 0) C10_THROW_ERROR(OutOfMemoryError, "the stand-in has no memory left");
    return {made, made, &release, device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(Memory::get().inside(to), Memory::get().inside(from), bytes);
  }

 private:
  static void release(void* address) { Memory::get().free(address); }
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  c10::Device getDevice() const override { return device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(current_stream()); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(1); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(current_stream(), next.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void synchronizeStream(const c10::Stream&) const override { wait_for_device(); }
  void synchronizeDevice(c10::DeviceIndex) const override { wait_for_device(); }

 private:
  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, device(), id); }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Generator>(); }
  at::Device getDeviceFromPtr(void*) const override { return device(); }
};

DeviceAllocator allocator;
const Guard guard;

}  // namespace

const at::Generator& default_generator() {
  static auto* made = new at::Generator(at::make_generator<Generator>());
  return *made;
}

c10::Device stand_in() {
  static const bool once = [] {
    c10::register_privateuse1_backend("accelerator");
    c10::SetAllocator(c10::DeviceType::PrivateUse1, &allocator);
    c10::impl::registerDeviceGuard(c10::DeviceType::PrivateUse1, &guard);
    at::RegisterPrivateUse1HooksInterface(new Hooks());
    register_kernels();
    register_graphs();
    return true;
  }();
  (void)once;
  return device();
}

std::uint64_t synchronisations() { return state().synchronisations; }
std::uint64_t kernels_run() { return state().kernels; }
std::uint64_t live_blocks() { return Memory::get().live_blocks(); }
void fail_next(const std::string& why) { state().fail_next = why; }

}  // namespace rouse::accelerator
