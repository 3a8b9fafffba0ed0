// Where the executor's suites run.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rouse/executor/compute.h"
#include "stand_in.h"

namespace rouse::accelerator {

// As the suites' parameter: what ROUSE_TEST_PLACE names ("cuda:0"), else "host" and "stand_in".
std::vector<std::string> places();
executor::Compute compute_at(const std::string& place);
// Of a test's parameter, as GoogleTest takes names.
std::string name_of_place(const testing::TestParamInfo<std::string>& info);

// Memory of a place at an address that models may have, filled and read beside whatever is tested.
class Bytes {
 public:
  Bytes(const std::string& place, std::size_t bytes);
  std::uint64_t address() const;
  void put(std::span<const std::byte> data) const;
  std::vector<std::byte> get() const;

 private:
  const executor::Compute compute_;
  const c10::Storage storage_;
};

}  // namespace rouse::accelerator
