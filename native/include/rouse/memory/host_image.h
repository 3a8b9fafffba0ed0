// A model's host copy: a file on a tmpfs, laid out as on the device, that outlives executors and gpu-server.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "rouse/base/status.h"

namespace rouse::memory {

// A read-only mapping. The file is written whole before it gets its name and is never changed or cut afterwards; it may
// be removed while it is mapped.
class HostImage {
 public:
  // kNotFound; kInvalid: no regular file, or an empty one; kMismatch: not of `expected_bytes` (0: any size).
  // Pages::kNow: all are mapped at once, so that copying takes no faults; kLater: as they are copied, for an image whose
  // swap is waited for: beside it, the faults cost nobody else anything.
  enum class Pages : uint8_t { kNow, kLater };
  static Result<std::unique_ptr<HostImage>> open(const std::string& path, uint64_t expected_bytes = 0,
                                                 Pages pages = Pages::kNow);
  ~HostImage();
  HostImage(const HostImage&) = delete;
  HostImage& operator=(const HostImage&) = delete;

  const void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  // Whether both show one file, whatever it is called by now.
  bool same_file(const HostImage& other) const { return volume_ == other.volume_ && inode_ == other.inode_; }

 private:
  HostImage(void* data, uint64_t bytes, uint64_t volume, uint64_t inode)
      : data_(data), bytes_(bytes), volume_(volume), inode_(inode) {}
  void* const data_;
  const uint64_t bytes_;
  const uint64_t volume_, inode_;
};

}  // namespace rouse::memory
