// Statuses as Python exceptions: rouse_native.errors.NativeError with the code's name and the text.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

#include "rouse/base/status.h"

namespace rouse::bindings {

// Needs the GIL.
[[noreturn]] inline void raise(const Status& status) {
  const auto kind = pybind11::module_::import("rouse_native.errors").attr("NativeError");
  PyErr_SetObject(kind.ptr(), kind(name_of(status.code()), status.text()).ptr());
  throw pybind11::error_already_set();
}

inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}

template <typename T>
T check(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return std::move(result).value();
}

// Does something that takes a while without the GIL.
template <typename Work>
auto unlocked(Work work) {
  pybind11::gil_scoped_release released;
  return work();
}

}  // namespace rouse::bindings
