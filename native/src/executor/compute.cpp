#include "rouse/executor/compute.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <dlfcn.h>

#include <cstring>
#include <exception>
#include <string>

#include "rouse/base/text.h"
#include "rouse/executor/operation.h"

namespace rouse::executor {
namespace {

// The exceptions of a device's kernels, allocator and stream, as a status.
template <typename Body>
Status guarded(const Body& body) {
  try {
    body();
    return {};
  } catch (const c10::OutOfMemoryError& error) {
    return {Code::kExhausted, std::string("OutOfMemoryError: ") + error.what_without_backtrace()};
  } catch (const c10::Error& error) {
    return {Code::kFailed, std::string("RuntimeError: ") + error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {Code::kFailed, std::string("RuntimeError: ") + error.what()};
  }
}

// Bytes of a storage as PyTorch's kernels take them.
at::Tensor bytes_of(const c10::Storage& storage, std::uint64_t offset, std::uint64_t count) {
  TensorSpec spec;
  spec.dtype = c10::ScalarType::Byte;
  spec.offset = static_cast<std::int64_t>(offset);
  spec.sizes = {static_cast<std::int64_t>(count)};
  spec.strides = {1};
  return make_tensor(storage, spec);
}

// The caller's own memory, for as long as the call takes.
at::Tensor host_bytes(const std::byte* data, std::uint64_t count) {
  c10::DataPtr memory(const_cast<std::byte*>(data), c10::Device(c10::DeviceType::CPU));
  return bytes_of(c10::Storage(c10::Storage::use_byte_size_t(), count, std::move(memory), nullptr, false), 0, count);
}

// PyTorch's kernels for CUDA are a library that registers them when it is loaded, and that programs without Python have
// to load themselves. Where this PyTorch has none, nothing is registered, and that is what is said.
void load_kernels(c10::DeviceType type) {
  if (type == c10::DeviceType::CUDA) (void)dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
}

}  // namespace

Result<Compute> Compute::make(c10::Device device) {
  if (device.is_cpu()) return Compute();
  load_kernels(device.type());
  if (!device.has_index()) return Status(Code::kInvalid, "a compute device without a number: " + device.str());
  const auto lacks = [&](const std::string& what) {
    return Status(Code::kUnsupported, text("this PyTorch cannot compute on ", device.str(), ": ", what,
                                           "; install a PyTorch that is built for it, and its driver"));
  };
  if (!c10::impl::hasDeviceGuardImpl(device.type())) return lacks("it was built without such devices");
  const Status ready = guarded([&] { at::globalContext().lazyInitDevice(device.type()); });
  if (!ready.ok()) return lacks(ready.text());
  const c10::impl::VirtualGuardImpl guard(device.type());
  const auto count = static_cast<int>(guard.deviceCount());
  if (device.index() < 0 || device.index() >= count)
    return lacks(text("there is no device of this number, only ", count, " of its kind"));
  const Compute compute(device);
  if (compute.allocator() == nullptr) return lacks("it has no allocator of its own");
  return compute;
}

c10::Allocator* Compute::allocator() const {
  return host() ? c10::GetCPUAllocator() : c10::GetAllocator(device_.type());
}

c10::DataPtr Compute::allocate(std::uint64_t bytes) const { return allocator()->allocate(bytes); }

c10::Storage Compute::make_storage(std::uint64_t bytes) const {
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, allocate(bytes), allocator(), /*resizable=*/true);
}

c10::Storage Compute::at(std::uint64_t address, std::uint64_t bytes) const {
  c10::DataPtr memory(reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), device_);
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(memory), nullptr, /*resizable=*/false);
}

Status Compute::write(const c10::Storage& to, std::uint64_t offset, std::span<const std::byte> data) const {
  if (data.empty()) return {};
  if (host()) {
    std::memcpy(static_cast<std::byte*>(to.mutable_data()) + offset, data.data(), data.size());
    return {};
  }
  return guarded([&] {
    const c10::InferenceMode mode;
    // Not asynchronous: who calls may change `data` next, and not every device takes a copy of it first.
    bytes_of(to, offset, data.size()).copy_(host_bytes(data.data(), data.size()), /*non_blocking=*/false);
  });
}

Status Compute::read(const c10::Storage& from, std::uint64_t offset, std::span<std::byte> data) const {
  if (data.empty()) return {};
  if (host()) {
    std::memcpy(data.data(), static_cast<const std::byte*>(from.data()) + offset, data.size());
    return {};
  }
  return guarded([&] {
    const c10::InferenceMode mode;
    host_bytes(data.data(), data.size()).copy_(bytes_of(from, offset, data.size()), /*non_blocking=*/false);
  });
}

Result<std::span<const std::byte>> Compute::look(const c10::Storage& from, std::uint64_t offset, std::uint64_t count,
                                                 std::vector<std::byte>& room) const {
  if (host()) return std::span(static_cast<const std::byte*>(from.data()) + offset, count);
  room.resize(count);
  ROUSE_RETURN_IF_ERROR(read(from, offset, room));
  return std::span<const std::byte>(room);
}

Status Compute::copy(const c10::Storage& to, const c10::Storage& from, std::uint64_t bytes,
                     std::uint64_t offset) const {
  if (bytes == 0) return {};
  if (host()) {
    std::memcpy(static_cast<std::byte*>(to.mutable_data()) + offset, from.data(), bytes);
    return {};
  }
  return guarded([&] {
    const c10::InferenceMode mode;
    bytes_of(to, offset, bytes).copy_(bytes_of(from, 0, bytes));
  });
}

Status Compute::zero(const c10::Storage& storage) const {
  if (storage.nbytes() == 0) return {};
  if (host()) {
    std::memset(storage.mutable_data(), 0, storage.nbytes());
    return {};
  }
  return guarded([&] {
    const c10::InferenceMode mode;
    bytes_of(storage, 0, storage.nbytes()).zero_();
  });
}

Status Compute::trim() const {
  // Ours are told what to keep; the device's own, if it keeps anything.
  auto* const keeping = host() ? nullptr : dynamic_cast<c10::DeviceAllocator*>(allocator());
  if (keeping == nullptr) return {};
  return guarded([&] {
    keeping->emptyCache();
    keeping->resetPeakStats(device_.index());
  });
}

std::uint64_t Compute::most_bytes() const {
  auto* const keeping = host() ? nullptr : dynamic_cast<c10::DeviceAllocator*>(allocator());
  std::uint64_t most = 0;
  // Where it cannot tell, what is counted here has to do.
  if (keeping != nullptr)
    (void)guarded([&] {
      constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
      most = static_cast<std::uint64_t>(keeping->getDeviceStats(device_.index()).reserved_bytes[kAll].peak);
    }).ok();
  return most;
}

Status Compute::synchronize() const {
  if (host()) return {};
  return guarded([&] {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    guard.synchronizeStream(guard.getStream(device_));
  });
}

}  // namespace rouse::executor
