// The device that operators run on, through PyTorch's own interfaces for any device (docs/decisions/0008): building
// needs no header of CUDA or of another accelerator; the PyTorch at run time decides which devices there are.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rouse/base/status.h"

namespace rouse::executor {

// A value: copying it copies a name. What a thread has a device do is done in order. Every storage below is one of this
// device; every range of bytes lies inside its storage.
class Compute {
 public:
  // The CPU: its memory is the process's own, and operators are done when they return.
  Compute() = default;
  // UNSUPPORTED, with what to do, where this PyTorch lacks the device or something of it that an executor needs.
  static Result<Compute> make(c10::Device device);

  c10::Device device() const { return device_; }
  // Whether this process may touch the device's memory itself.
  bool host() const { return device_.is_cpu(); }

  // With whatever bytes are in it. Throws what PyTorch's allocator throws.
  c10::DataPtr allocate(std::uint64_t bytes) const;
  c10::Storage make_storage(std::uint64_t bytes) const;
  // Memory that is somebody else's, at an address of the device: neither freed nor resized.
  c10::Storage at(std::uint64_t address, std::uint64_t bytes) const;

  // FAILED with what the device says. `data` may go when write() returns.
  Status write(const c10::Storage& to, std::uint64_t offset, std::span<const std::byte> data) const;
  // Waits for what was done before, as whatever gives bytes to the host does.
  Status read(const c10::Storage& from, std::uint64_t offset, std::span<std::byte> data) const;
  // The bytes where they are, if the process may touch them; else read into `room`. Until either changes.
  Result<std::span<const std::byte>> look(const c10::Storage& from, std::uint64_t offset, std::uint64_t count,
                                          std::vector<std::byte>& room) const;
  // The first `bytes` of `from`, to `offset`.
  Status copy(const c10::Storage& to, const c10::Storage& from, std::uint64_t bytes, std::uint64_t offset = 0) const;
  Status zero(const c10::Storage& storage) const;
  // Gives memory that the device's allocator keeps for the next storage back to the device.
  Status trim() const;
  // The most that the device's allocator held since the last trim(), with what kernels took; 0 where it does not say.
  std::uint64_t most_bytes() const;
  // Waits until all is done that this thread had the device do. FAILED: something of it was not; see
  // Engine for whose error that is.
  Status synchronize() const;

 private:
  explicit Compute(c10::Device device) : device_(device) {}
  c10::Allocator* allocator() const;

  c10::Device device_{c10::DeviceType::CPU};
};

}  // namespace rouse::executor
