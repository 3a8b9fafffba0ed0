#include "rouse/device/cuda.h"

#include <map>
#include <mutex>
#include <thread>

#include "address_map.h"
#include "cuda_api.h"
#include "rouse/base/text.h"

namespace rouse::device {

namespace {

using cu::Api;

// What stays free where the capacity is not given: the context, kernels and libraries take memory later.
constexpr uint64_t kSpareShare = 20;
// An event is looked at this often while it is waited for; before that, at once.
constexpr auto kPoll = std::chrono::microseconds(20);
constexpr auto kSpin = std::chrono::microseconds(50);

// Calls a driver function and returns from the caller where it fails.
#define ROUSE_CUDA(api, function, ...) ROUSE_RETURN_IF_ERROR((api).check((api).function(__VA_ARGS__), #function))

class CudaEvent final : public Event {
 public:
  CudaEvent(const Api& api, cu::Context context, cu::EventHandle event) : api_(api), context_(context), event_(event) {}
  ~CudaEvent() override {
    if (api_.context_set(context_) == cu::kSuccess) static_cast<void>(api_.event_destroy(event_));
  }
  Status query() override {
    ROUSE_CUDA(api_, context_set, context_);
    const cu::Result result = api_.event_query(event_);
    if (result == cu::kNotReady) return Status(Code::kRefused, "the event is not done yet");
    return api_.check(result, "event_query");
  }
  Status wait(Deadline deadline) override {
    const auto started = std::chrono::steady_clock::now();
    while (true) {
      Status status = query();
      if (status.code() != Code::kRefused) return status;
      const auto now = std::chrono::steady_clock::now();
      if (now >= deadline) return Status(Code::kDeadline, "the device has not done its copies in time");
      if (now - started > kSpin) {
        std::this_thread::sleep_for(kPoll);
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  const Api& api_;
  const cu::Context context_;
  const cu::EventHandle event_;
};

class CudaHostMemory final : public PinnedMemory {
 public:
  CudaHostMemory(const Api& api, cu::Context context, void* data, uint64_t bytes, bool owned)
      : api_(api), context_(context), data_(data), bytes_(bytes), owned_(owned) {}
  ~CudaHostMemory() override {
    if (api_.context_set(context_) != cu::kSuccess) return;
    static_cast<void>(owned_ ? api_.host_free(data_) : api_.host_unregister(data_));
  }
  void* data() const override { return data_; }
  uint64_t bytes() const override { return bytes_; }

 private:
  const Api& api_;
  const cu::Context context_;
  void* const data_;
  const uint64_t bytes_;
  const bool owned_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(const Api& api, cu::DeviceNumber number, cu::Context context, std::string name, std::string architecture,
             uint64_t granularity, uint64_t capacity)
      : api_(api),
        number_(number),
        context_(context),
        name_(std::move(name)),
        architecture_(std::move(architecture)),
        granularity_(granularity),
        map_(capacity, granularity) {}
  ~CudaDevice() override;

  const char* kind() const override { return "cuda"; }
  std::string architecture() const override { return architecture_; }
  std::string describe() const override {
    return text(name_, ", device ", number_, ", ", usage().capacity >> 20, " MiB");
  }
  uint64_t granularity() const override { return granularity_; }
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

  const Api& api() const { return api_; }
  cu::Context context() const { return context_; }
  Status check_mapped(uint64_t address, uint64_t bytes) const {
    std::lock_guard guard(lock_);
    return map_.check_mapped(address, bytes);
  }

 private:
  const Api& api_;
  const cu::DeviceNumber number_;
  const cu::Context context_;
  const std::string name_;
  const std::string architecture_;
  const uint64_t granularity_;
  mutable std::mutex lock_;
  AddressMap map_;
  std::map<uint64_t, cu::Address> handles_;  // by number of the chunk
};

class CudaStream final : public Stream {
 public:
  CudaStream(CudaDevice& device, cu::StreamHandle stream) : device_(device), api_(device.api()), stream_(stream) {}
  ~CudaStream() override {
    if (api_.context_set(device_.context()) != cu::kSuccess) return;
    static_cast<void>(api_.stream_synchronize(stream_));
    static_cast<void>(api_.stream_destroy(stream_));
  }
  Status copy_in(uint64_t to, const void* from, uint64_t bytes) override {
    ROUSE_RETURN_IF_ERROR(begin(to, bytes));
    ROUSE_CUDA(api_, copy_in, to, from, bytes, stream_);
    return {};
  }
  Status copy_out(void* to, uint64_t from, uint64_t bytes) override {
    ROUSE_RETURN_IF_ERROR(begin(from, bytes));
    ROUSE_CUDA(api_, copy_out, to, from, bytes, stream_);
    return {};
  }
  Status copy_peer(uint64_t to, Device& source, uint64_t from, uint64_t bytes) override {
    auto* peer = dynamic_cast<CudaDevice*>(&source);
    if (!peer) {
      return Status(Code::kUnsupported, text("a copy from a ", source.kind(), " device straight to a CUDA device"));
    }
    ROUSE_RETURN_IF_ERROR(peer->check_mapped(from, bytes));
    ROUSE_RETURN_IF_ERROR(begin(to, bytes));
    ROUSE_CUDA(api_, copy_peer, to, device_.context(), from, peer->context(), bytes, stream_);
    return {};
  }
  Status zero(uint64_t to, uint64_t bytes) override {
    ROUSE_RETURN_IF_ERROR(begin(to, bytes));
    ROUSE_CUDA(api_, fill, to, 0, bytes, stream_);
    return {};
  }
  Result<std::unique_ptr<Event>> record() override {
    ROUSE_CUDA(api_, context_set, device_.context());
    cu::EventHandle event = nullptr;
    ROUSE_CUDA(api_, event_create, &event, cu::kEventNoTiming);
    auto made = std::make_unique<CudaEvent>(api_, device_.context(), event);
    ROUSE_CUDA(api_, event_record, event, stream_);
    return std::unique_ptr<Event>(std::move(made));
  }

 private:
  Status begin(uint64_t address, uint64_t bytes) {
    ROUSE_RETURN_IF_ERROR(device_.check_mapped(address, bytes));
    ROUSE_CUDA(api_, context_set, device_.context());
    return {};
  }
  CudaDevice& device_;
  const Api& api_;
  const cu::StreamHandle stream_;
};

cu::AllocationProp allocation_on(cu::DeviceNumber device) {
  cu::AllocationProp prop{};
  prop.type = cu::kAllocationPinned;
  prop.location = {cu::kLocationDevice, device};
  return prop;
}

// At the end there is nobody to tell: what fails here ends with the process.
CudaDevice::~CudaDevice() {
  if (api_.context_set(context_) == cu::kSuccess) {
    for (const auto& [chunk, handle] : handles_) {
      if (const auto address = map_.check_unmap(ChunkId{chunk}); address.ok()) {
        static_cast<void>(api_.unmap(address.value(), map_.bytes_of(ChunkId{chunk})));
      }
      static_cast<void>(api_.release(handle));
    }
    for (const auto& [address, bytes] : map_.ranges()) static_cast<void>(api_.address_free(address, bytes));
  }
  static_cast<void>(api_.context_release(number_));
}

Status CudaDevice::reserve(uint64_t address, uint64_t bytes) {
  std::lock_guard guard(lock_);
  ROUSE_RETURN_IF_ERROR(map_.check_reserve(address, bytes));
  ROUSE_CUDA(api_, context_set, context_);
  cu::Address got = 0;
  ROUSE_CUDA(api_, reserve, &got, bytes, 0, address, 0);
  if (got != address) {
    ROUSE_CUDA(api_, address_free, got, bytes);
    return Status(Code::kMismatch,
                  text("the range of ", bytes, " B at ", Hex{address}, " was refused: the driver gave ", Hex{got},
                       " instead; something else in this process lies there"));
  }
  map_.reserved(address, bytes);
  return {};
}

Status CudaDevice::release(uint64_t address) {
  std::lock_guard guard(lock_);
  Result<uint64_t> bytes = map_.check_release(address);
  if (!bytes.ok()) return bytes.status();
  ROUSE_CUDA(api_, context_set, context_);
  ROUSE_CUDA(api_, address_free, address, bytes.value());
  map_.released(address);
  return {};
}

Result<ChunkId> CudaDevice::create(uint64_t bytes) {
  std::lock_guard guard(lock_);
  ROUSE_RETURN_IF_ERROR(map_.check_create(bytes));
  ROUSE_CUDA(api_, context_set, context_);
  const cu::AllocationProp prop = allocation_on(number_);
  cu::Address handle = 0;
  ROUSE_CUDA(api_, create, &handle, bytes, &prop, 0);
  const ChunkId chunk = map_.created(bytes);
  handles_[chunk.number] = handle;
  return chunk;
}

Status CudaDevice::destroy(ChunkId chunk) {
  std::lock_guard guard(lock_);
  ROUSE_RETURN_IF_ERROR(map_.check_destroy(chunk));
  ROUSE_CUDA(api_, context_set, context_);
  ROUSE_CUDA(api_, release, handles_.at(chunk.number));
  handles_.erase(chunk.number);
  map_.destroyed(chunk);
  return {};
}

Status CudaDevice::map(ChunkId chunk, uint64_t address) {
  std::lock_guard guard(lock_);
  ROUSE_RETURN_IF_ERROR(map_.check_map(chunk, address));
  ROUSE_CUDA(api_, context_set, context_);
  const uint64_t bytes = map_.bytes_of(chunk);
  ROUSE_CUDA(api_, map, address, bytes, 0, handles_.at(chunk.number), 0);
  const cu::AccessDesc access{{cu::kLocationDevice, number_}, cu::kAccessReadWrite};
  if (Status status = api_.check(api_.set_access(address, bytes, &access, 1), "set_access"); !status.ok()) {
    ROUSE_CUDA(api_, unmap, address, bytes);
    return status;
  }
  map_.mapped(chunk, address);
  return {};
}

Status CudaDevice::unmap(ChunkId chunk) {
  std::lock_guard guard(lock_);
  Result<uint64_t> address = map_.check_unmap(chunk);
  if (!address.ok()) return address.status();
  ROUSE_CUDA(api_, context_set, context_);
  ROUSE_CUDA(api_, unmap, address.value(), map_.bytes_of(chunk));
  map_.unmapped(chunk);
  return {};
}

Result<std::unique_ptr<PinnedMemory>> CudaDevice::pin(uint64_t bytes) {
  if (bytes == 0) return Status(Code::kInvalid, "pinned memory of 0 B");
  ROUSE_CUDA(api_, context_set, context_);
  void* data = nullptr;
  ROUSE_CUDA(api_, host_alloc, &data, bytes, cu::kHostPortable);
  return std::unique_ptr<PinnedMemory>(new CudaHostMemory(api_, context_, data, bytes, true));
}

Result<std::unique_ptr<PinnedMemory>> CudaDevice::pin_existing(const void* data, uint64_t bytes) {
  if (data == nullptr || bytes == 0) return Status(Code::kInvalid, "pinned memory of 0 B");
  ROUSE_CUDA(api_, context_set, context_);
  void* const memory = const_cast<void*>(data);
  // Images are mapped read-only, which some devices cannot pin: the error then says so, and copies go unpinned.
  ROUSE_CUDA(api_, host_register, memory, bytes, cu::kHostPortable | cu::kHostRegisterReadOnly);
  return std::unique_ptr<PinnedMemory>(new CudaHostMemory(api_, context_, memory, bytes, false));
}

Result<std::unique_ptr<Stream>> CudaDevice::make_stream() {
  ROUSE_CUDA(api_, context_set, context_);
  cu::StreamHandle stream = nullptr;
  ROUSE_CUDA(api_, stream_create, &stream, cu::kStreamNonBlocking);
  return std::unique_ptr<Stream>(new CudaStream(*this, stream));
}

struct Facts {
  std::string name;
  std::string architecture;
  uint64_t granularity = 0;
  uint64_t free = 0;
};

// With the device's context current.
Result<Facts> read_facts(const Api& api, cu::DeviceNumber device) {
  int has_virtual_memory = 0;
  ROUSE_CUDA(api, device_attribute, &has_virtual_memory, cu::kAttributeVirtualMemory, device);
  if (!has_virtual_memory) {
    return Status(Code::kUnsupported, text("CUDA device ", device, " has no virtual memory management"));
  }
  Facts facts;
  char name[256] = {};
  ROUSE_CUDA(api, device_name, name, static_cast<int>(sizeof name) - 1, device);
  facts.name = name;
  int major = 0, minor = 0;
  ROUSE_CUDA(api, device_attribute, &major, cu::kAttributeMajor, device);
  ROUSE_CUDA(api, device_attribute, &minor, cu::kAttributeMinor, device);
  facts.architecture = text("cuda:sm_", major, minor);
  const cu::AllocationProp prop = allocation_on(device);
  size_t granularity = 0, free = 0, total = 0;
  ROUSE_CUDA(api, granularity, &granularity, &prop, cu::kGranularityMinimum);
  ROUSE_CUDA(api, memory_info, &free, &total);
  if (granularity == 0) return Status(Code::kUnsupported, text("CUDA device ", device, " gives no granularity"));
  facts.granularity = granularity;
  facts.free = free;
  return facts;
}

}  // namespace

Result<std::unique_ptr<Device>> make_cuda_device(const CudaOptions& options) {
  const auto loaded = cu::load(options.driver);
  if (!loaded.ok()) return loaded.status();
  const Api& api = *loaded.value();
  int count = 0;
  ROUSE_CUDA(api, device_count, &count);
  if (options.ordinal < 0 || options.ordinal >= count) {
    return Status(Code::kNotFound, text("there is no CUDA device ", options.ordinal, "; this machine has ", count));
  }
  cu::DeviceNumber device = 0;
  ROUSE_CUDA(api, device_get, &device, options.ordinal);
  cu::Context context = nullptr;
  ROUSE_CUDA(api, context_retain, &context, device);
  auto made = [&]() -> Result<std::unique_ptr<Device>> {
    ROUSE_CUDA(api, context_set, context);
    Result<Facts> facts = read_facts(api, device);
    if (!facts.ok()) return facts.status();
    const uint64_t unit = facts.value().granularity;
    const uint64_t usable = (facts.value().free - facts.value().free / kSpareShare) / unit * unit;
    const uint64_t capacity = options.capacity ? options.capacity : usable;
    if (capacity == 0 || capacity % unit || capacity > facts.value().free) {
      return Status(Code::kInvalid, text("a capacity of ", capacity, " B on CUDA device ", device, " with ",
                                         facts.value().free, " B free: it is a multiple of ", unit));
    }
    return std::unique_ptr<Device>(new CudaDevice(api, device, context, facts.value().name,
                                                          facts.value().architecture, unit, capacity));
  }();
  if (!made.ok()) static_cast<void>(api.context_release(device));
  return made;
}

}  // namespace rouse::device
