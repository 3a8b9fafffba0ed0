// The executor's log: one line an event on standard error, which whoever started it reads.
#pragma once

#include <string_view>

namespace rouse::serve {

void log_info(std::string_view text);
void log_warning(std::string_view text);
void log_error(std::string_view text);

}  // namespace rouse::serve
