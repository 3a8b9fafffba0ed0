#include "device.h"

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "address_map.h"
#include "memory.h"
#include "rouse/base/fd.h"
#include "rouse/base/text.h"

namespace rouse::accelerator {
namespace {

using device::ChunkId;

constexpr std::uint64_t kGranularity = 2 << 20;

// Copies where it is called; an event is done at the second look, as a copy takes its time.
class DoneEvent final : public device::Event {
 public:
  Status query() override { return looked_++ > 0 ? Status() : Status(Code::kRefused, "the event is not done yet"); }
  Status wait(device::Deadline) override {
    looked_ = 1;
    return {};
  }

 private:
  int looked_ = 0;
};

class HostMemory final : public device::PinnedMemory {
 public:
  HostMemory(void* data, std::uint64_t bytes) : data_(data), bytes_(bytes) {}
  explicit HostMemory(std::uint64_t bytes) : owned_(bytes), data_(owned_.data()), bytes_(bytes) {}
  void* data() const override { return data_; }
  std::uint64_t bytes() const override { return bytes_; }

 private:
  std::vector<std::byte> owned_;
  void* data_;
  std::uint64_t bytes_;
};

class StandInDevice final : public device::Device {
 public:
  explicit StandInDevice(std::uint64_t capacity) : map_(capacity, kGranularity) {}
  ~StandInDevice() override {
    for (const auto& [address, bytes] : map_.ranges()) Memory::get().remove_range(address);
  }

  const char* kind() const override { return "stand_in"; }
  std::string architecture() const override { return "stand_in"; }
  std::string describe() const override { return "a stand-in for an accelerator"; }
  std::uint64_t granularity() const override { return kGranularity; }
  device::Usage usage() const override {
    const std::lock_guard guard(lock_);
    return map_.usage();
  }
  Status reserve(std::uint64_t address, std::uint64_t bytes) override {
    const std::lock_guard guard(lock_);
    ROUSE_RETURN_IF_ERROR(map_.check_reserve(address, bytes));
    if (!Memory::get().add_range(address, bytes))
      return Status(Code::kMismatch, text("the range at ", Hex{address}, " is taken"));
    map_.reserved(address, bytes);
    return {};
  }
  Status release(std::uint64_t address) override {
    const std::lock_guard guard(lock_);
    const auto bytes = map_.check_release(address);
    if (!bytes.ok()) return bytes.status();
    Memory::get().remove_range(address);
    map_.released(address);
    return {};
  }
  Result<ChunkId> create(std::uint64_t bytes) override {
    const std::lock_guard guard(lock_);
    ROUSE_RETURN_IF_ERROR(map_.check_create(bytes));
    Fd file(memfd_create("stand-in", MFD_CLOEXEC));
    if (!file.valid() || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0)
      return Status(Code::kExhausted, "no memory for a chunk");
    const ChunkId chunk = map_.created(bytes);
    files_[chunk.number] = std::move(file);
    return chunk;
  }
  Status destroy(ChunkId chunk) override {
    const std::lock_guard guard(lock_);
    ROUSE_RETURN_IF_ERROR(map_.check_destroy(chunk));
    files_.erase(chunk.number);
    map_.destroyed(chunk);
    return {};
  }
  Status map(ChunkId chunk, std::uint64_t address) override {
    const std::lock_guard guard(lock_);
    ROUSE_RETURN_IF_ERROR(map_.check_map(chunk, address));
    Memory::get().fill(address, map_.bytes_of(chunk), files_.at(chunk.number).get());
    map_.mapped(chunk, address);
    return {};
  }
  Status unmap(ChunkId chunk) override {
    const std::lock_guard guard(lock_);
    const auto address = map_.check_unmap(chunk);
    if (!address.ok()) return address.status();
    Memory::get().fill(address.value(), map_.bytes_of(chunk), -1);
    map_.unmapped(chunk);
    return {};
  }
  Result<std::unique_ptr<device::PinnedMemory>> pin(std::uint64_t bytes) override {
    if (bytes == 0) return Status(Code::kInvalid, "pinned memory of 0 B");
    return std::unique_ptr<device::PinnedMemory>(new HostMemory(bytes));
  }
  Result<std::unique_ptr<device::PinnedMemory>> pin_existing(const void* data, std::uint64_t bytes) override {
    if (data == nullptr || bytes == 0) return Status(Code::kInvalid, "pinned memory of 0 B");
    return std::unique_ptr<device::PinnedMemory>(new HostMemory(const_cast<void*>(data), bytes));
  }
  Result<std::unique_ptr<device::Stream>> make_stream() override;

  Status check_mapped(std::uint64_t address, std::uint64_t bytes) const {
    const std::lock_guard guard(lock_);
    return map_.check_mapped(address, bytes);
  }

 private:
  mutable std::mutex lock_;
  device::AddressMap map_;
  std::map<std::uint64_t, Fd> files_;  // by number of the chunk
};

std::byte* inside(std::uint64_t address) { return Memory::get().inside(reinterpret_cast<const void*>(address)); }

class CopyStream final : public device::Stream {
 public:
  explicit CopyStream(StandInDevice& device) : device_(device) {}
  Status copy_in(std::uint64_t to, const void* from, std::uint64_t bytes) override {
    ROUSE_RETURN_IF_ERROR(device_.check_mapped(to, bytes));
    std::memcpy(inside(to), from, bytes);
    return {};
  }
  Status copy_out(void* to, std::uint64_t from, std::uint64_t bytes) override {
    ROUSE_RETURN_IF_ERROR(device_.check_mapped(from, bytes));
    std::memcpy(to, inside(from), bytes);
    return {};
  }
  Status copy_peer(std::uint64_t to, device::Device& source, std::uint64_t from, std::uint64_t bytes) override {
    const auto* const peer = dynamic_cast<StandInDevice*>(&source);
    if (peer == nullptr) return Status(Code::kUnsupported, text("a copy from a ", source.kind(), " device"));
    ROUSE_RETURN_IF_ERROR(peer->check_mapped(from, bytes));
    ROUSE_RETURN_IF_ERROR(device_.check_mapped(to, bytes));
    std::memcpy(inside(to), inside(from), bytes);
    return {};
  }
  Status zero(std::uint64_t to, std::uint64_t bytes) override {
    ROUSE_RETURN_IF_ERROR(device_.check_mapped(to, bytes));
    std::memset(inside(to), 0, bytes);
    return {};
  }
  Result<std::unique_ptr<device::Event>> record() override {
    return std::unique_ptr<device::Event>(std::make_unique<DoneEvent>());
  }

 private:
  StandInDevice& device_;
};

Result<std::unique_ptr<device::Stream>> StandInDevice::make_stream() {
  return std::unique_ptr<device::Stream>(std::make_unique<CopyStream>(*this));
}

}  // namespace

Result<std::unique_ptr<device::Device>> make_device(std::uint64_t capacity) {
  if (capacity == 0 || capacity % kGranularity != 0)
    return Status(Code::kInvalid, text("a capacity of ", capacity, " B: it is a multiple of ", kGranularity));
  return std::unique_ptr<device::Device>(std::make_unique<StandInDevice>(capacity));
}

}  // namespace rouse::accelerator
