// Memory that says whether it was read: inputs that a function gets as arrays, and which a recorded request has to take
// from the device alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "rouse/base/status.h"

namespace rouse::redirect {

// Whole pages of this process. Between `watch` and `unwatch` the first touch by this process is noted, and then goes
// through; a system call that is given them fails with EFAULT. Watched by one thread, touched by any.
class Watched {
 public:
  static Result<std::unique_ptr<Watched>> make(std::size_t bytes);
  ~Watched();
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  // REFUSED where touches could not be told: somebody has replaced the process's handler of SIGSEGV, or too much is
  // watched.
  Status watch();
  // Whether it was touched meanwhile. Harmless where it is not watched.
  bool unwatch();

 private:
  Watched(std::byte* data, std::size_t size, std::size_t mapped) : data_(data), size_(size), mapped_(mapped) {}
  bool enter();

  std::byte* const data_;
  const std::size_t size_, mapped_;
  int slot_ = -1;
  bool watched_ = false;
};

}  // namespace rouse::redirect
