// A model's weights out of a file, mapped where every process has them.
#pragma once

#include <cstdint>
#include <string>

#include "rouse/base/status.h"

namespace rouse::executor {

// Read-only and shared: what one process has read, others have in memory, too.
class WeightsFile {
 public:
  WeightsFile() = default;
  ~WeightsFile();
  WeightsFile(const WeightsFile&) = delete;
  WeightsFile& operator=(const WeightsFile&) = delete;

  // NOT_FOUND: it cannot be read; MISMATCH: the addresses are not free.
  Status map(const std::string& path, std::uint64_t base);
  std::uint64_t base() const { return base_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t base_ = 0, bytes_ = 0;
};

}  // namespace rouse::executor
