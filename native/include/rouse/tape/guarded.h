// Exceptions of a device's kernels, allocator and graphs, as a status.
#pragma once

#include <c10/util/Exception.h>

#include <exception>

#include "rouse/base/status.h"
#include "rouse/base/text.h"

namespace rouse::tape {

// `what` failed, where `body` threw: "a replay".
template <typename Body>
Status guarded(const char* what, const Body& body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    return Status(Code::kFailed, text(what, " failed: ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return Status(Code::kFailed, text(what, " failed: ", error.what()));
  }
}

}  // namespace rouse::tape
