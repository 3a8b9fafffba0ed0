// Stands in for libcuda.so.1 and libnvidia-ml.so.1 of a machine with four devices: gpu0 and gpu1 have two NVLinks of
// 25 GB/s to each other, gpu2 and gpu3 three to NVSwitches, one of them down; gpu3 does not tell rates by link.
// FAKE_FAULT breaks one thing at a time.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char* const kAddress[] = {"0000:03:00.0", "0000:04:00.0", "0001:83:00.0", "0001:84:00.0"};
static int fault(const char* name) {
  const char* set = getenv("FAKE_FAULT");
  return set != NULL && strcmp(set, name) == 0;
}

int cuInit(unsigned flags) { return flags != 0 ? 1 : fault("no-device") ? 100 : fault("init") ? 999 : 0; }
int cuDeviceGetCount(int* count) {
  *count = fault("count") ? 1000 : 4;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDeviceGetPCIBusId(char* text, int bytes, int device) {
  snprintf(text, (size_t)bytes, "%s", fault("address") ? "here" : kAddress[device]);
  return 0;
}

#ifndef NO_NVML
typedef struct {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char address[32];
} PciInfo;
typedef struct {
  unsigned field, scope;
  long long at, took;
  unsigned type, result;
  union {
    double d;
    unsigned u;
    unsigned long long ull;
  } value;
} Field;

int nvmlInit_v2(void) { return fault("nvml") ? 9 : 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  for (uintptr_t i = 0; i < 4; ++i) {
    if (strcmp(address, kAddress[i]) == 0) {
      *device = (void*)(i + 1);
      return 0;
    }
  }
  return 6;
}
static unsigned count(uintptr_t device) { return device <= 2 ? 2 : 3; }
int nvmlDeviceGetFieldValues(void* device, int values, Field* field) {
  uintptr_t number = (uintptr_t)device;
  if (values != 1) return 2;
  field->result = 0;
  field->type = 1;
  field->value.ull = 0;
  if (field->field == 91) {
    field->value.u = fault("links") ? 1000 : count(number);
  } else if (field->field == 164 && number != 4) {
    field->value.u = 25000;
  } else if (field->field == 90 && number == 4 && !fault("rates")) {
    field->type = 3;
    field->value.ull = 25000;
  } else if (field->field == 165 && number == 3) {
    field->value.u = field->scope != 2;
  } else {
    field->result = 3;
  }
  return 0;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* active) {
  *active = (uintptr_t)device <= 2 || link != 2;
  return 0;
}
int nvmlDeviceGetNvLinkCapability(void* device, unsigned link, unsigned capability, unsigned* can) {
  (void)device;
  (void)link;
  *can = capability == 0;
  return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned link, PciInfo* info) {
  uintptr_t number = (uintptr_t)device;
  (void)link;
  memset(info, 0, sizeof *info);
  const char* other = number == 1 ? "00000000:04:00.0" : number == 2 ? "00000000:03:00.0" : "ffffffff:ff:ff.f";
  snprintf(info->address, sizeof info->address, "%s", fault("remote") ? "nowhere" : other);
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void* device, unsigned link, unsigned* kind) {
  (void)link;
  *kind = (uintptr_t)device <= 2 ? 0 : 2;
  return 0;
}
#endif
