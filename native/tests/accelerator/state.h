// What the parts of the stand-in share.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Utils.h>
#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

namespace rouse::accelerator {

inline c10::Device device() { return {c10::DeviceType::PrivateUse1, 0}; }

struct State {
  std::atomic<std::uint64_t> synchronisations{0}, kernels{0};
  std::string fail_next, failed;
};
State& state();
// Of this thread: 0 is the default one. All do what they are given at once, so that no stream waits for another.
c10::StreamId& current_stream();
// Throws what failed on the device since the last time.
void wait_for_device();

// Numbers of the CPU's generator, under another device's name.
class Generator final : public c10::GeneratorImpl {
 public:
  Generator()
      : GeneratorImpl(accelerator::device(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner_(at::detail::createCPUGenerator(c10::default_rng_seed_val)) {}
  at::Generator& inner() { return inner_; }
  void set_current_seed(std::uint64_t seed) override { inner_.set_current_seed(seed); }
  std::uint64_t current_seed() const override { return inner_.current_seed(); }
  std::uint64_t seed() override { return inner_.seed(); }
  void set_offset(std::uint64_t) override { TORCH_CHECK(false, "the stand-in's generators have no offset"); }
  std::uint64_t get_offset() const override { TORCH_CHECK(false, "the stand-in's generators have no offset"); }
  void set_state(const c10::TensorImpl& state) override {
    const c10::TensorImpl* const given = &state;
    inner_.unsafeGetGeneratorImpl()->set_state(*given);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner_.unsafeGetGeneratorImpl()->get_state();
  }

 private:
  Generator* clone_impl() const override {
    auto* copy = new Generator();
    copy->inner_ = inner_.clone();
    return copy;
  }
  at::Generator inner_;
};
const at::Generator& default_generator();

}  // namespace rouse::accelerator
