#include "rouse/executor/weights_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace rouse::executor {

Status WeightsFile::map(const std::string& path, std::uint64_t base) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info{};
  if (file < 0 || fstat(file, &info) != 0) {
    const int why = errno;
    if (file >= 0) close(file);
    return Status(Code::kNotFound, "weights in " + path + " cannot be read: " + std::strerror(why));
  }
  const auto bytes = static_cast<std::uint64_t>(info.st_size);
  auto* wanted = reinterpret_cast<void*>(base);
  void* at = bytes == 0 ? wanted : mmap(wanted, bytes, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
  const int why = errno;
  close(file);
  if (at == MAP_FAILED)
    return Status(Code::kMismatch, "weights in " + path + " cannot be mapped at their address: " + std::strerror(why));
  // Older kernels take the address for a hint.
  if (at != wanted) {
    munmap(at, bytes);
    return Status(Code::kMismatch, "weights in " + path + " were mapped elsewhere: their addresses are taken");
  }
  base_ = base;
  bytes_ = bytes;
  return {};
}

WeightsFile::~WeightsFile() {
  if (bytes_ != 0) munmap(reinterpret_cast<void*>(base_), bytes_);
}

}  // namespace rouse::executor
