#include "rouse/memory/host_image.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rouse/base/text.h"

namespace rouse::memory {

Result<std::unique_ptr<HostImage>> HostImage::open(const std::string& path, uint64_t expected_bytes, Pages pages) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) {
    return Status(errno == ENOENT ? Code::kNotFound : Code::kFailed, text("host image ", path, ": ", errno_text()));
  }
  struct stat info{};
  void* data = MAP_FAILED;
  int error = 0;
  uint64_t bytes = 0;
  if (fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
    bytes = static_cast<uint64_t>(info.st_size);
    if (expected_bytes == 0 || expected_bytes == bytes) {
      const int flags = MAP_SHARED | (pages == Pages::kNow ? MAP_POPULATE : 0);
      data = mmap(nullptr, bytes, PROT_READ, flags, file, 0);
      error = errno;
    }
  }
  close(file);
  if (bytes == 0) return Status(Code::kInvalid, text("host image ", path, " is no file with something in it"));
  if (expected_bytes && expected_bytes != bytes) {
    return Status(Code::kMismatch, text("host image ", path, " has ", bytes, " B instead of ", expected_bytes));
  }
  if (data == MAP_FAILED) return Status(Code::kExhausted, text("mapping host image ", path, ": ", errno_text(error)));
  return std::unique_ptr<HostImage>(new HostImage(data, bytes, info.st_dev, info.st_ino));
}

HostImage::~HostImage() { munmap(data_, bytes_); }

}  // namespace rouse::memory
