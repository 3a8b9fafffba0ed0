// What we use of the CUDA driver API, declared here so that building needs no CUDA. tests/device/cuda_abi_test.cpp
// compares it with cuda.h where that is installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "rouse/base/status.h"

namespace rouse::device::cu {

using Result = int;  // CUresult
using DeviceNumber = int;
using Address = unsigned long long;  // CUdeviceptr, CUmemGenericAllocationHandle
using Context = struct ContextTag*;
using StreamHandle = struct StreamTag*;
using EventHandle = struct EventTag*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotReady = 600;
inline constexpr int kAttributeMajor = 75, kAttributeMinor = 76;  // compute capability
inline constexpr int kAttributeVirtualMemory = 102;
inline constexpr int kAllocationPinned = 1;
inline constexpr int kLocationDevice = 1;
inline constexpr int kGranularityMinimum = 0;
inline constexpr int kAccessReadWrite = 3;
inline constexpr unsigned kHostPortable = 1;          // CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE
inline constexpr unsigned kHostRegisterReadOnly = 8;  // CU_MEMHOSTREGISTER_READ_ONLY
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventNoTiming = 2;

struct Location {
  int type;
  int id;
};

struct AllocationProp {
  int type;
  int handle_types;
  Location location;
  void* win32_meta;
  struct {
    unsigned char compression;
    unsigned char gpu_direct;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
static_assert(sizeof(AllocationProp) == 32);

struct AccessDesc {
  Location location;
  int flags;
};
static_assert(sizeof(AccessDesc) == 12);

// The driver's functions; the second name is the symbol's.
#define ROUSE_CUDA_FUNCTIONS(F)                                                                                       \
  F(init, "cuInit", (unsigned flags))                                                                                 \
  F(driver_version, "cuDriverGetVersion", (int* version))                                                             \
  F(device_count, "cuDeviceGetCount", (int* count))                                                                   \
  F(device_get, "cuDeviceGet", (DeviceNumber * device, int ordinal))                                                  \
  F(device_name, "cuDeviceGetName", (char* name, int bytes, DeviceNumber device))                                     \
  F(device_attribute, "cuDeviceGetAttribute", (int* value, int attribute, DeviceNumber device))                       \
  F(context_retain, "cuDevicePrimaryCtxRetain", (Context * context, DeviceNumber device))                             \
  F(context_release, "cuDevicePrimaryCtxRelease_v2", (DeviceNumber device))                                           \
  F(context_set, "cuCtxSetCurrent", (Context context))                                                                \
  F(memory_info, "cuMemGetInfo_v2", (size_t* free, size_t* total))                                                    \
  F(granularity, "cuMemGetAllocationGranularity", (size_t* bytes, const AllocationProp* prop, int))                   \
  F(reserve, "cuMemAddressReserve", (Address * at, size_t bytes, size_t alignment, Address hint, unsigned long long)) \
  F(address_free, "cuMemAddressFree", (Address at, size_t bytes))                                                     \
  F(create, "cuMemCreate", (Address * handle, size_t bytes, const AllocationProp* prop, unsigned long long))          \
  F(release, "cuMemRelease", (Address handle))                                                                        \
  F(map, "cuMemMap", (Address at, size_t bytes, size_t offset, Address handle, unsigned long long))                   \
  F(unmap, "cuMemUnmap", (Address at, size_t bytes))                                                                  \
  F(set_access, "cuMemSetAccess", (Address at, size_t bytes, const AccessDesc* access, size_t count))                 \
  F(host_alloc, "cuMemHostAlloc", (void** data, size_t bytes, unsigned flags))                                        \
  F(host_free, "cuMemFreeHost", (void* data))                                                                         \
  F(host_register, "cuMemHostRegister_v2", (void* data, size_t bytes, unsigned flags))                                \
  F(host_unregister, "cuMemHostUnregister", (void* data))                                                             \
  F(stream_create, "cuStreamCreate", (StreamHandle * stream, unsigned flags))                                         \
  F(stream_synchronize, "cuStreamSynchronize", (StreamHandle stream))                                                 \
  F(stream_destroy, "cuStreamDestroy_v2", (StreamHandle stream))                                                      \
  F(copy_in, "cuMemcpyHtoDAsync_v2", (Address to, const void* from, size_t bytes, StreamHandle))                      \
  F(copy_out, "cuMemcpyDtoHAsync_v2", (void* to, Address from, size_t bytes, StreamHandle))                           \
  F(copy_peer, "cuMemcpyPeerAsync", (Address to, Context, Address from, Context, size_t bytes, StreamHandle))         \
  F(fill, "cuMemsetD8Async", (Address to, unsigned char value, size_t bytes, StreamHandle))                           \
  F(event_create, "cuEventCreate", (EventHandle * event, unsigned flags))                                             \
  F(event_record, "cuEventRecord", (EventHandle event, StreamHandle stream))                                          \
  F(event_query, "cuEventQuery", (EventHandle event))                                                                 \
  F(event_destroy, "cuEventDestroy_v2", (EventHandle event))                                                          \
  F(error_string, "cuGetErrorString", (Result error, const char** text))

// A driver that was loaded; it stays for the process's life.
struct Api {
#define ROUSE_CUDA_MEMBER(name, symbol, parameters) Result(*name) parameters = nullptr;
  ROUSE_CUDA_FUNCTIONS(ROUSE_CUDA_MEMBER)
#undef ROUSE_CUDA_MEMBER

  // kOk, or what the driver says about `call`; kExhausted where it is out of memory.
  Status check(Result result, const char* call) const;
};

// kUnsupported: there is no such library, it lacks a function, or it cannot start.
rouse::Result<const Api*> load(const std::string& library);

}  // namespace rouse::device::cu
