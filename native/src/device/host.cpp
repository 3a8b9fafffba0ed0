#include "rouse/device/host.h"

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "address_map.h"
#include "piece_pool.h"
#include "rouse/base/text.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace rouse::device {

namespace {

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// Copies are done when the call returns, and so is every event.
class DoneEvent final : public Event {
 public:
  Status query() override { return {}; }
  Status wait(Deadline) override { return {}; }
};

// Host memory needs no pinning here; the interface's promise (it is there, and its pages are) is kept.
class HostMemory final : public PinnedMemory {
 public:
  HostMemory(void* data, uint64_t bytes, bool owned) : data_(data), bytes_(bytes), owned_(owned) {}
  ~HostMemory() override {
    if (owned_) munmap(data_, bytes_);
  }
  void* data() const override { return data_; }
  uint64_t bytes() const override { return bytes_; }

 private:
  void* const data_;
  const uint64_t bytes_;
  const bool owned_;
};

class HostDevice final : public Device {
 public:
  HostDevice(uint64_t capacity, std::unique_ptr<PiecePool> pool)
      : map_(capacity, kPieceBytes), pool_(std::move(pool)) {}
  ~HostDevice() override;

  const char* kind() const override { return "host"; }
  std::string architecture() const override { return "cpu"; }
  std::string describe() const override { return text("host memory, ", usage().capacity >> 20, " MiB"); }
  uint64_t granularity() const override { return kPieceBytes; }
  Usage usage() const override {
    std::lock_guard guard(lock_);
    return map_.usage();
  }

  Status reserve(uint64_t address, uint64_t bytes) override;
  Status release(uint64_t address) override;
  Result<ChunkId> create(uint64_t bytes) override;
  Status destroy(ChunkId chunk) override;
  Status map(ChunkId chunk, uint64_t address) override;
  Status unmap(ChunkId chunk) override;
  Result<std::unique_ptr<PinnedMemory>> pin(uint64_t bytes) override;
  Result<std::unique_ptr<PinnedMemory>> pin_existing(const void* data, uint64_t bytes) override;
  Result<std::unique_ptr<Stream>> make_stream() override;

  Status check_mapped(uint64_t address, uint64_t bytes) const {
    std::lock_guard guard(lock_);
    return map_.check_mapped(address, bytes);
  }

 private:
  mutable std::mutex lock_;
  AddressMap map_;
  const std::unique_ptr<PiecePool> pool_;
  std::map<uint64_t, std::vector<Run>> pieces_;  // by number of the chunk
};

class HostStream final : public Stream {
 public:
  explicit HostStream(HostDevice& device) : device_(device) {}

  Status copy_in(uint64_t to, const void* from, uint64_t bytes) override {
    ROUSE_RETURN_IF_ERROR(device_.check_mapped(to, bytes));
    std::memcpy(pointer(to), from, bytes);
    return {};
  }
  Status copy_out(void* to, uint64_t from, uint64_t bytes) override {
    ROUSE_RETURN_IF_ERROR(device_.check_mapped(from, bytes));
    std::memcpy(to, pointer(from), bytes);
    return {};
  }
  Status copy_peer(uint64_t to, Device& source, uint64_t from, uint64_t bytes) override {
    auto* peer = dynamic_cast<HostDevice*>(&source);
    if (!peer) {
      return Status(Code::kUnsupported, text("a copy from a ", source.kind(), " device straight to a host device"));
    }
    ROUSE_RETURN_IF_ERROR(device_.check_mapped(to, bytes));
    ROUSE_RETURN_IF_ERROR(peer->check_mapped(from, bytes));
    std::memcpy(pointer(to), pointer(from), bytes);
    return {};
  }
  Status zero(uint64_t to, uint64_t bytes) override {
    ROUSE_RETURN_IF_ERROR(device_.check_mapped(to, bytes));
    std::memset(pointer(to), 0, bytes);
    return {};
  }
  Result<std::unique_ptr<Event>> record() override { return std::unique_ptr<Event>(new DoneEvent); }

 private:
  HostDevice& device_;
};

HostDevice::~HostDevice() {
  for (const auto& [address, bytes] : map_.ranges()) munmap(pointer(address), bytes);
}

Status HostDevice::reserve(uint64_t address, uint64_t bytes) {
  std::lock_guard guard(lock_);
  ROUSE_RETURN_IF_ERROR(map_.check_reserve(address, bytes));
  void* got = mmap(pointer(address), bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == MAP_FAILED) {
    const int error = errno;
    return Status(error == ENOMEM ? Code::kExhausted : Code::kMismatch,
                  text("the range of ", bytes, " B at ", Hex{address}, " is not to be had: ", errno_text(error),
                       "; something else in this process lies there"));
  }
  if (got != pointer(address)) {  // Before Linux 4.17 the flag is not known, and the address is a hint.
    munmap(got, bytes);
    return Status(Code::kMismatch, text("the range of ", bytes, " B at ", Hex{address},
                                        " was refused: the kernel gave ", got, " instead"));
  }
  map_.reserved(address, bytes);
  return {};
}

Status HostDevice::release(uint64_t address) {
  std::lock_guard guard(lock_);
  Result<uint64_t> bytes = map_.check_release(address);
  if (!bytes.ok()) return bytes.status();
  if (munmap(pointer(address), bytes.value()) != 0) {
    return Status(Code::kFailed, text("unmapping ", bytes.value(), " B at ", Hex{address}, ": ", errno_text()));
  }
  map_.released(address);
  return {};
}

Result<ChunkId> HostDevice::create(uint64_t bytes) {
  std::lock_guard guard(lock_);
  ROUSE_RETURN_IF_ERROR(map_.check_create(bytes));
  Result<std::vector<Run>> runs = pool_->take(bytes / kPieceBytes);
  if (!runs.ok()) return runs.status();
  const ChunkId chunk = map_.created(bytes);
  pieces_[chunk.number] = std::move(runs).value();
  return chunk;
}

Status HostDevice::destroy(ChunkId chunk) {
  std::lock_guard guard(lock_);
  ROUSE_RETURN_IF_ERROR(map_.check_destroy(chunk));
  pool_->give(pieces_.at(chunk.number));
  pieces_.erase(chunk.number);
  map_.destroyed(chunk);
  return {};
}

Status HostDevice::map(ChunkId chunk, uint64_t address) {
  std::lock_guard guard(lock_);
  ROUSE_RETURN_IF_ERROR(map_.check_map(chunk, address));
  ROUSE_RETURN_IF_ERROR(pool_->move_out(pieces_.at(chunk.number), address));
  map_.mapped(chunk, address);
  return {};
}

Status HostDevice::unmap(ChunkId chunk) {
  std::lock_guard guard(lock_);
  Result<uint64_t> address = map_.check_unmap(chunk);
  if (!address.ok()) return address.status();
  ROUSE_RETURN_IF_ERROR(pool_->move_in(pieces_.at(chunk.number), address.value()));
  map_.unmapped(chunk);
  return {};
}

Result<std::unique_ptr<PinnedMemory>> HostDevice::pin(uint64_t bytes) {
  if (bytes == 0) return Status(Code::kInvalid, "pinned memory of 0 B");
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (data == MAP_FAILED) return Status(Code::kExhausted, text("no ", bytes, " B of host memory: ", errno_text()));
  return std::unique_ptr<PinnedMemory>(new HostMemory(data, bytes, true));
}

Result<std::unique_ptr<PinnedMemory>> HostDevice::pin_existing(const void* data, uint64_t bytes) {
  if (data == nullptr || bytes == 0) return Status(Code::kInvalid, "pinned memory of 0 B");
  return std::unique_ptr<PinnedMemory>(new HostMemory(const_cast<void*>(data), bytes, false));
}

Result<std::unique_ptr<Stream>> HostDevice::make_stream() { return std::unique_ptr<Stream>(new HostStream(*this)); }

}  // namespace

Result<std::unique_ptr<Device>> make_host_device(const HostOptions& options) {
  auto pool = PiecePool::make(options.capacity);
  if (!pool.ok()) return pool.status();
  if (options.prefault) ROUSE_RETURN_IF_ERROR(pool.value()->prefault());
  return std::unique_ptr<Device>(new HostDevice(options.capacity, std::move(pool).value()));
}

}  // namespace rouse::device
