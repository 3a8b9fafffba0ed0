// The program: configuration, the parts put together, signals, the order of stopping, exit codes.
#pragma once

#include <functional>
#include <memory>

#include "rouse/serve/backend.h"
#include "rouse/serve/config.h"

namespace rouse::serve {

inline constexpr int kExitStopped = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitBadConfig = 2;
inline constexpr int kExitNoDevice = 3;
inline constexpr int kExitCutOff = 4;

using MakeBackend = std::function<Result<std::unique_ptr<Backend>>(const Config&)>;

// The whole of main. Prints "ready" on standard output when it listens; ends on SIGTERM or SIGINT, and with the process
// that started it.
int executor_main(int argc, const char* const* argv, const char* const* environment, const MakeBackend& make_backend);

}  // namespace rouse::serve
