#include "device.h"

#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <cstring>
#include <random>
#include <utility>

#include "encode.h"
#include "rouse/redirect/client.h"

namespace rouse::redirect {
namespace {

// A storage's context holds its name (32 bits) and the connection it belongs to; an address is its own name.
constexpr int kEpochShift = 48;
constexpr std::uint64_t kNameMask = (1ull << kEpochShift) - 1;

void* context_of(std::uint64_t name) {
  return reinterpret_cast<void*>(name | (static_cast<std::uint64_t>(Client::epoch() & 0xffff) << kEpochShift));
}

void free_storage(void* context) {
  const auto word = reinterpret_cast<std::uint64_t>(context);
  // Of an earlier connection: its executor has forgotten all of it.
  if (!Client::connected() || (word >> kEpochShift) != (Client::epoch() & 0xffff)) return;
  Client::get().free(word & kNameMask);
}

// No memory: an address that no other storage's range reaches, for those who compare data_ptr().
void* pointer_of(std::uint64_t name) {
  return reinterpret_cast<void*>(name >= wire::kModelBase ? name : (1ull << 46) + (name << 24));
}

class RouseAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const auto name = Client::get().create(bytes);
    return {pointer_of(name), context_of(name), &free_storage, rouse_device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "memory of the rouse device cannot be copied by address; use tensor.copy_()");
  }
};

class RouseGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device) const override { return rouse_device(); }
  c10::Device getDevice() const override { return rouse_device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, rouse_device()); }
  c10::Stream exchangeStream(c10::Stream) const override { return c10::Stream(c10::Stream::DEFAULT, rouse_device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void synchronizeDevice(c10::DeviceIndex) const override { Client::get().synchronize(); }
};

// Random numbers are drawn by the executor; this is the name of a generator there.
class RouseGenerator final : public c10::GeneratorImpl {
 public:
  explicit RouseGenerator(std::uint32_t number)
      : GeneratorImpl(rouse_device(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), number_(number) {}
  ~RouseGenerator() override {
    if (number_ != 0 && Client::connected() && Client::get().alive()) Client::get().drop_generator(number_);
  }
  std::uint32_t number() const { return number_; }
  void set_current_seed(std::uint64_t seed) override {
    Client::get().seed(number_, seed);
    seed_ = seed;
  }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override {
    std::random_device entropy;
    set_current_seed((static_cast<std::uint64_t>(entropy()) << 32 | entropy()) & 0x1f'ffff'ffff'ffffull);
    return seed_;
  }
  void set_offset(std::uint64_t) override { refuse_offset(); }
  std::uint64_t get_offset() const override { refuse_offset(); }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK_TYPE(state.is_cpu() && state.dtype() == caffe2::TypeMeta::Make<std::uint8_t>() && state.is_contiguous(),
                     "the state of a generator is a contiguous CPU ByteTensor");
    Client::get().set_state(number_,
                            {static_cast<const std::byte*>(state.data()), static_cast<std::size_t>(state.numel())});
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const auto state = Client::get().state(number_);
    auto tensor = at::empty({static_cast<std::int64_t>(state.size())}, at::kByte);
    std::memcpy(tensor.mutable_data_ptr(), state.data(), state.size());
    return tensor.getIntrusivePtr();
  }

 private:
  [[noreturn]] static void refuse_offset() {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "generators of the rouse device have no offset; use get_state() and set_state()");
    std::abort();
  }
  RouseGenerator* clone_impl() const override;
  std::uint32_t number_;
  std::uint64_t seed_ = c10::default_rng_seed_val;
};

std::uint32_t new_generator_number() {
  static std::atomic<std::uint32_t> next{1};
  const auto number = next.fetch_add(1);
  // Numbers are not used twice in a row: a dropped generator and a new one are never taken for each other.
  return 1 + (number - 1) % (wire::kMaxGenerators - 1);
}

RouseGenerator* RouseGenerator::clone_impl() const {
  auto* copy = new RouseGenerator(new_generator_number());
  copy->set_state(*get_state());
  copy->seed_ = seed_;
  return copy;
}

class RouseHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return Client::connected(); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    auto made = at::make_generator<RouseGenerator>(new_generator_number());
    made.set_current_seed(c10::default_rng_seed_val);
    return made;
  }
  at::Device getDeviceFromPtr(void*) const override { return rouse_device(); }
  // Pinned memory is the executor's business: what is copied passes through the rings.
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    Client::get().resize(name_of(*storage.unsafeGetStorageImpl()), bytes);
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

const RouseGuard kGuard;

}  // namespace

std::uint64_t name_of(const c10::StorageImpl& storage) {
  const auto word = reinterpret_cast<std::uint64_t>(storage.data_ptr().get_context());
  TORCH_CHECK(
      storage.device_type() == c10::DeviceType::PrivateUse1 && storage.data_ptr().get_deleter() == &free_storage,
      "this storage is not one that the rouse device made: its memory has no address here, by which others could read "
      "it, as pickle does; use torch.save(), or tensor.cpu() first");
  TORCH_CHECK((word >> kEpochShift) == (Client::epoch() & 0xffff),
              "this tensor lived in an executor that is gone; make it again after connect()");
  return word & kNameMask;
}

c10::Allocator& rouse_allocator() {
  static auto* allocator = new RouseAllocator();
  return *allocator;
}

c10::Storage make_storage(std::uint64_t name, std::uint64_t bytes) {
  return {c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes,
      c10::DataPtr(pointer_of(name), context_of(name), &free_storage, rouse_device()), &rouse_allocator(), true)};
}

const at::Generator& default_generator() {
  static auto* generator = new at::Generator(at::make_generator<RouseGenerator>(0));
  return *generator;
}

std::uint32_t generator_number(const at::Generator& generator) {
  TORCH_CHECK(generator.device().is_privateuseone(), "Expected a 'rouse' device type for generator but found '",
              generator.device().type(), "'");
  return static_cast<const RouseGenerator*>(generator.unsafeGetGeneratorImpl())->number();
}

void register_device() {
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &rouse_allocator());
  c10::impl::registerDeviceGuard(c10::DeviceType::PrivateUse1, &kGuard);
  at::RegisterPrivateUse1HooksInterface(new RouseHooks());
}

}  // namespace rouse::redirect
