#include "rouse/serve/log.h"

#include <unistd.h>

#include <string>

namespace rouse::serve {

namespace {

// One write, so that lines of two threads do not mix. Control characters that a peer sent must not forge lines.
void line(const char* level, std::string_view text) {
  std::string out(level);
  for (const char c : text.substr(0, 2000)) out.push_back(static_cast<unsigned char>(c) < 0x20 ? ' ' : c);
  out.push_back('\n');
  (void)!::write(STDERR_FILENO, out.data(), out.size());
}

}  // namespace

void log_info(std::string_view text) { line("INFO ", text); }
void log_warning(std::string_view text) { line("WARNING ", text); }
void log_error(std::string_view text) { line("ERROR ", text); }

}  // namespace rouse::serve
