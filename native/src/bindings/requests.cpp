// rouse_native._redirect: requests that are recorded, and replays.
#include "../redirect/requests.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdio>

namespace py = pybind11;

namespace rouse::bindings {
namespace {

std::vector<at::Tensor> tensors_of(const py::sequence& objects) {
  std::vector<at::Tensor> tensors;
  for (const auto& object : objects) {
    if (!THPVariable_Check(object.ptr())) throw py::type_error("tensors are expected");
    tensors.push_back(THPVariable_Unpack(object.ptr()));
  }
  return tensors;
}

py::object object_of(const at::Tensor& tensor) { return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor)); }

// As SaveTapes says it (proto/rouse/device/v1/core.proto).
std::string signature_of(const std::string& what, const py::sequence& inputs) {
  const auto signature = redirect::signature_of(what, tensors_of(inputs));
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(signature[0]),
                static_cast<unsigned long long>(signature[1]));
  return text;
}

py::tuple replay(const std::string& what, const py::sequence& inputs) {
  const auto given = tensors_of(inputs);
  redirect::ReplayAnswer answer;
  {
    const py::gil_scoped_release release;
    answer = redirect::replay(what, given);
  }
  py::list outputs;
  for (const auto& tensor : answer.outputs) outputs.append(object_of(tensor));
  return py::make_tuple(answer.outcome, outputs);
}

}  // namespace

void add_requests(py::module_& module) {
  module.def("signature_of", &signature_of);
  module.def("begin_request", [](std::uint64_t request, const std::string& what, const py::sequence& inputs) {
    redirect::begin_request(request, what, tensors_of(inputs));
  });
  module.def("end_request", [](std::uint64_t request, const py::sequence& outputs) {
    redirect::end_request(request, tensors_of(outputs));
  });
  module.def("replay", &replay);
  module.def("describe_tapes", &redirect::describe_tapes, py::call_guard<py::gil_scoped_release>());
}

}  // namespace rouse::bindings
