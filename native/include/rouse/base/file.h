// Files read whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rouse/base/status.h"

namespace rouse {

// The bytes of a regular file, no link. INVALID where it is none, has more than `most` bytes, or cannot be read.
Result<std::vector<std::byte>> read_file(const std::string& path, std::uint64_t most);

// Writes a file under another name first: whoever reads `path` finds all of it or nothing of it. FAILED.
Status write_whole(const std::string& path, std::span<const std::byte> bytes);

}  // namespace rouse
