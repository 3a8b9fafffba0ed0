#include "places.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "memory.h"
#include "stand_in.h"

namespace rouse::accelerator {

std::vector<std::string> places() { return {"host", "stand_in"}; }

executor::Compute compute_at(const std::string& place) {
  if (place == "host") return {};
  auto made = executor::Compute::make(stand_in());
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().describe().c_str());
    std::abort();
  }
  return made.value();
}

Bytes::Bytes(const std::string& place, std::size_t bytes) : host_(place == "host") {
  // Above the base of models, where a session may name addresses.
  static char* host_end = reinterpret_cast<char*>(0x5200'0000'0000);
  if (host_) {
    address_ = mmap(host_end, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (address_ == MAP_FAILED) std::abort();
    host_end += 1 << 20;
    inside_ = static_cast<std::byte*>(address_);
  } else {
    address_ = Memory::get().allocate(bytes);
    inside_ = Memory::get().inside(address_);
  }
}

Bytes::~Bytes() {
  if (!host_) Memory::get().free(address_);
}

}  // namespace rouse::accelerator
