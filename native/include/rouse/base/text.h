// The parts of an error's text, joined.
#pragma once

#include <cerrno>
#include <cstdint>
#include <sstream>
#include <string>
#include <system_error>

namespace rouse {

// An address, as people read it: 0x500000000000.
struct Hex {
  std::uint64_t value;
};
inline std::ostream& operator<<(std::ostream& out, Hex hex) {
  const auto flags = out.flags();
  out << "0x" << std::hex << hex.value;
  out.flags(flags);
  return out;
}

template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// What errno says, as "Cannot allocate memory".
inline std::string errno_text(int code = errno) { return std::generic_category().message(code); }

}  // namespace rouse
