#include "rouse/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "rouse/base/fd.h"
#include "rouse/base/text.h"

namespace rouse {

Result<std::vector<std::byte>> read_file(const std::string& path, std::uint64_t most) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat info{};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
    return Status(Code::kInvalid, text(path, " cannot be read: ", errno_text()));
  }
  if (!S_ISREG(info.st_mode) || static_cast<std::uint64_t>(info.st_size) > most) {
    return Status(Code::kInvalid, text(path, " is no file of at most ", most, " bytes"));
  }
  std::vector<std::byte> bytes(static_cast<size_t>(info.st_size));
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t count = ::read(fd.get(), bytes.data() + at, bytes.size() - at);
    if (count <= 0) return Status(Code::kInvalid, text(path, " cannot be read: ", errno_text()));
    at += static_cast<size_t>(count);
  }
  return bytes;
}

Status write_whole(const std::string& path, std::span<const std::byte> bytes) {
  const std::string part = text(path, ".", ::getpid(), ".part");
  const auto failed = [&] {
    const Status status(Code::kFailed, text(path, " cannot be written: ", errno_text()));
    ::unlink(part.c_str());
    return status;
  };
  {
    const Fd fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid()) return failed();
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t count = ::write(fd.get(), bytes.data() + at, bytes.size() - at);
      if (count <= 0) return failed();
      at += static_cast<size_t>(count);
    }
  }
  return std::rename(part.c_str(), path.c_str()) == 0 ? Status() : failed();
}

}  // namespace rouse
