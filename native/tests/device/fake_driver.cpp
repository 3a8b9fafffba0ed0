// A stand-in for libcuda.so.1 in host memory: it keeps the driver's rules as documented, so that the CUDA backend's
// sequence of calls and its accounts are tested where there is no GPU. It says nothing about a real one.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>

#include "cuda_api.h"

namespace {

using namespace rouse::device::cu;

constexpr Result kInvalidValue = 1, kInvalidContext = 201, kInvalidDevice = 101;
constexpr size_t kGranularity = 2 << 20;
constexpr size_t kTotal = size_t{1} << 30;
constexpr int kDevices = 2;

struct Mapping {
  size_t bytes;
  Address handle;
};
struct Memory {
  int file;
  size_t bytes;
  bool released = false;
  int mappings = 0;
};

std::mutex lock;
thread_local Context current = nullptr;
std::map<Address, size_t> ranges;
std::map<Address, Mapping> mappings;
std::map<Address, Memory> memories;
Address last_handle = 0;
size_t used = 0;

void* at(Address address) { return reinterpret_cast<void*>(address); }

void drop_if_unused(std::map<Address, Memory>::iterator memory) {
  if (!memory->second.released || memory->second.mappings) return;
  close(memory->second.file);
  used -= memory->second.bytes;
  memories.erase(memory);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
#define NEEDS_CONTEXT          \
  std::lock_guard guard(lock); \
  if (current == nullptr) return kInvalidContext

EXPORT Result cuInit(unsigned flags) { return flags ? kInvalidValue : kSuccess; }
EXPORT Result cuDriverGetVersion(int* version) { return *version = 13000, kSuccess; }
EXPORT Result cuDeviceGetCount(int* count) { return *count = kDevices, kSuccess; }
EXPORT Result cuDeviceGet(DeviceNumber* device, int ordinal) {
  if (ordinal < 0 || ordinal >= kDevices) return kInvalidDevice;
  return *device = ordinal, kSuccess;
}
EXPORT Result cuDeviceGetName(char* name, int bytes, DeviceNumber) {
  std::strncpy(name, "stand-in", static_cast<size_t>(bytes));
  return kSuccess;
}
EXPORT Result cuDeviceGetAttribute(int* value, int attribute, DeviceNumber) {
  // Of a compute capability that no device has.
  if (attribute == kAttributeMajor) return *value = 1, kSuccess;
  return *value = attribute == kAttributeVirtualMemory || attribute == kAttributeMinor, kSuccess;
}
EXPORT Result cuDevicePrimaryCtxRetain(Context* context, DeviceNumber device) {
  *context = reinterpret_cast<Context>(static_cast<uintptr_t>(device + 1));
  return kSuccess;
}
EXPORT Result cuDevicePrimaryCtxRelease_v2(DeviceNumber) { return kSuccess; }
EXPORT Result cuCtxSetCurrent(Context context) { return current = context, kSuccess; }
EXPORT Result cuMemGetInfo_v2(size_t* free, size_t* total) {
  NEEDS_CONTEXT;
  *free = kTotal - used;
  *total = kTotal;
  return kSuccess;
}
EXPORT Result cuMemGetAllocationGranularity(size_t* bytes, const AllocationProp* prop, int) {
  if (prop->type != kAllocationPinned || prop->location.type != kLocationDevice) return kInvalidValue;
  return *bytes = kGranularity, kSuccess;
}
EXPORT Result cuMemAddressReserve(Address* address, size_t bytes, size_t, Address hint, unsigned long long flags) {
  NEEDS_CONTEXT;
  if (bytes == 0 || bytes % kGranularity || flags) return kInvalidValue;
  // A hint, as with the driver: another address where it is taken.
  void* got = mmap(at(hint), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return kOutOfMemory;
  *address = reinterpret_cast<Address>(got);
  ranges[*address] = bytes;
  return kSuccess;
}
EXPORT Result cuMemAddressFree(Address address, size_t bytes) {
  NEEDS_CONTEXT;
  const auto range = ranges.find(address);
  if (range == ranges.end() || range->second != bytes) return kInvalidValue;
  const auto inside = mappings.lower_bound(address);
  if (inside != mappings.end() && inside->first < address + bytes) return kInvalidValue;
  munmap(at(address), bytes);
  ranges.erase(range);
  return kSuccess;
}
EXPORT Result cuMemCreate(Address* handle, size_t bytes, const AllocationProp* prop, unsigned long long flags) {
  NEEDS_CONTEXT;
  if (bytes == 0 || bytes % kGranularity || flags || prop->type != kAllocationPinned) return kInvalidValue;
  if (bytes > kTotal - used) return kOutOfMemory;
  const int file = memfd_create("stand-in", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return kOutOfMemory;
  used += bytes;
  memories[*handle = ++last_handle] = Memory{file, bytes};
  return kSuccess;
}
EXPORT Result cuMemRelease(Address handle) {
  NEEDS_CONTEXT;
  const auto memory = memories.find(handle);
  if (memory == memories.end() || memory->second.released) return kInvalidValue;
  memory->second.released = true;
  drop_if_unused(memory);
  return kSuccess;
}
EXPORT Result cuMemMap(Address address, size_t bytes, size_t offset, Address handle, unsigned long long flags) {
  NEEDS_CONTEXT;
  const auto memory = memories.find(handle);
  auto range = ranges.upper_bound(address);
  if (memory == memories.end() || memory->second.bytes != bytes || offset || flags || range == ranges.begin()) {
    return kInvalidValue;
  }
  --range;
  const auto next = mappings.lower_bound(address);
  const bool clear = (next == mappings.end() || next->first >= address + bytes) &&
                     (next == mappings.begin() || std::prev(next)->first + std::prev(next)->second.bytes <= address);
  if (address + bytes > range->first + range->second || !clear) return kInvalidValue;
  // Without cuMemSetAccess nobody may touch it.
  mmap(at(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->second.file, 0);
  mappings[address] = Mapping{bytes, handle};
  ++memory->second.mappings;
  return kSuccess;
}
EXPORT Result cuMemUnmap(Address address, size_t bytes) {
  NEEDS_CONTEXT;
  const auto mapping = mappings.find(address);
  if (mapping == mappings.end() || mapping->second.bytes != bytes) return kInvalidValue;
  mmap(at(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  const auto memory = memories.find(mapping->second.handle);
  mappings.erase(mapping);
  --memory->second.mappings;
  drop_if_unused(memory);
  return kSuccess;
}
EXPORT Result cuMemSetAccess(Address address, size_t bytes, const AccessDesc* access, size_t count) {
  NEEDS_CONTEXT;
  const auto mapping = mappings.find(address);
  if (mapping == mappings.end() || mapping->second.bytes != bytes || count != 1 || access->flags != kAccessReadWrite) {
    return kInvalidValue;
  }
  mprotect(at(address), bytes, PROT_READ | PROT_WRITE);
  return kSuccess;
}
EXPORT Result cuMemHostAlloc(void** data, size_t bytes, unsigned) {
  NEEDS_CONTEXT;
  return *data = ::operator new(bytes), kSuccess;
}
EXPORT Result cuMemFreeHost(void* data) {
  ::operator delete(data);
  return kSuccess;
}
EXPORT Result cuMemHostRegister_v2(void*, size_t, unsigned) {
  NEEDS_CONTEXT;
  return kSuccess;
}
EXPORT Result cuMemHostUnregister(void*) { return kSuccess; }
EXPORT Result cuStreamCreate(StreamHandle* stream, unsigned) {
  NEEDS_CONTEXT;
  return *stream = reinterpret_cast<StreamHandle>(current), kSuccess;
}
EXPORT Result cuStreamSynchronize(StreamHandle) { return kSuccess; }
EXPORT Result cuStreamDestroy_v2(StreamHandle) { return kSuccess; }
EXPORT Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, StreamHandle) {
  NEEDS_CONTEXT;
  return std::memcpy(at(to), from, bytes), kSuccess;
}
EXPORT Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, StreamHandle) {
  NEEDS_CONTEXT;
  return std::memcpy(to, at(from), bytes), kSuccess;
}
EXPORT Result cuMemcpyPeerAsync(Address to, Context, Address from, Context, size_t bytes, StreamHandle) {
  NEEDS_CONTEXT;
  return std::memcpy(at(to), at(from), bytes), kSuccess;
}
EXPORT Result cuMemsetD8Async(Address to, unsigned char value, size_t bytes, StreamHandle) {
  NEEDS_CONTEXT;
  return std::memset(at(to), value, bytes), kSuccess;
}
EXPORT Result cuEventCreate(EventHandle* event, unsigned) {
  NEEDS_CONTEXT;
  return *event = reinterpret_cast<EventHandle>(new int(0)), kSuccess;
}
EXPORT Result cuEventRecord(EventHandle, StreamHandle) { return kSuccess; }
// Not done at the first look, as a copy takes its time.
EXPORT Result cuEventQuery(EventHandle event) { return ++*reinterpret_cast<int*>(event) > 2 ? kSuccess : kNotReady; }
EXPORT Result cuEventDestroy_v2(EventHandle event) {
  delete reinterpret_cast<int*>(event);
  return kSuccess;
}
EXPORT Result cuGetErrorString(Result, const char** said) { return *said = "the stand-in says no", kSuccess; }
