#include "places.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace rouse::accelerator {
namespace {

// Where the process's own memory lies is the kernel's choice; a session may name addresses above the base of models.
c10::Storage make_storage(const executor::Compute& compute, std::size_t bytes) {
  if (!compute.host()) return compute.make_storage(bytes);
  static std::uint64_t next = 0x5200'0000'0000;
  void* const at = mmap(reinterpret_cast<void*>(next), bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (at == MAP_FAILED) std::abort();
  next += 1 << 20;
  return compute.at(reinterpret_cast<std::uint64_t>(at), bytes);
}

}  // namespace

std::vector<std::string> places() {
  const char* const only = std::getenv("ROUSE_TEST_PLACE");
  return only != nullptr ? std::vector<std::string>{only} : std::vector<std::string>{"host", "stand_in"};
}

executor::Compute compute_at(const std::string& place) {
  if (place == "host") return {};
  auto made = executor::Compute::make(place == "stand_in" ? stand_in() : c10::Device(place));
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().describe().c_str());
    std::abort();
  }
  return made.value();
}

std::string name_of_place(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
}

Bytes::Bytes(const std::string& place, std::size_t bytes)
    : compute_(compute_at(place)), storage_(make_storage(compute_, bytes)) {}

std::uint64_t Bytes::address() const { return reinterpret_cast<std::uint64_t>(storage_.data()); }

void Bytes::put(std::span<const std::byte> data) const { ASSERT_TRUE(compute_.write(storage_, 0, data).ok()); }

std::vector<std::byte> Bytes::get() const {
  std::vector<std::byte> data(storage_.nbytes());
  EXPECT_TRUE(compute_.read(storage_, 0, data).ok());
  return data;
}

}  // namespace rouse::accelerator
