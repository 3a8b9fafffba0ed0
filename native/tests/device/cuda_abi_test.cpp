// What cuda_api.h declares is what cuda.h says; compiled where that is installed. There is nothing to run.
#include <cuda.h>

#include <cstddef>

#include "cuda_api.h"

namespace cu = rouse::device::cu;

static_assert(sizeof(cu::Address) == sizeof(CUdeviceptr) &&
              sizeof(cu::Address) == sizeof(CUmemGenericAllocationHandle));
static_assert(sizeof(cu::DeviceNumber) == sizeof(CUdevice) && sizeof(cu::Result) == sizeof(CUresult));
static_assert(sizeof(cu::AllocationProp) == sizeof(CUmemAllocationProp));
static_assert(offsetof(cu::AllocationProp, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(cu::AllocationProp, flags) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(cu::AccessDesc) == sizeof(CUmemAccessDesc));
static_assert(offsetof(cu::AccessDesc, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(cu::kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY && cu::kNotReady == CUDA_ERROR_NOT_READY);
static_assert(cu::kAttributeVirtualMemory == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
static_assert(cu::kAllocationPinned == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(cu::kLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(cu::kGranularityMinimum == CU_MEM_ALLOC_GRANULARITY_MINIMUM);
static_assert(cu::kAccessReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(cu::kHostPortable == CU_MEMHOSTALLOC_PORTABLE && cu::kHostPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(cu::kHostRegisterReadOnly == CU_MEMHOSTREGISTER_READ_ONLY);
static_assert(cu::kStreamNonBlocking == CU_STREAM_NON_BLOCKING && cu::kEventNoTiming == CU_EVENT_DISABLE_TIMING);
