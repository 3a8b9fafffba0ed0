// rouse_native._redirect: registering the device, connecting it, counters, the cache of templates.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>
#include <unistd.h>

#include <stdexcept>

#include "../redirect/device.h"
#include "../redirect/encode.h"
#include "../redirect/operators.h"
#include "../redirect/register.h"
#include "../redirect/tensor_at.h"
#include "rouse/redirect/client.h"
#include "rouse/ring/ring.h"

namespace py = pybind11;

namespace rouse::bindings {
void add_requests(py::module_& module);  // requests.cpp
void add_watched(py::module_& module);   // watched.cpp
}  // namespace rouse::bindings

namespace {

using rouse::redirect::Client;
using rouse::redirect::Operators;

[[noreturn]] void fail(const rouse::Status& status) { throw std::runtime_error(status.describe()); }

void connect(int rings, int socket, int patience_ms) {
  auto channel = rouse::ring::Channel::open(rouse::ring::Side::kClient, rings);
  if (!channel.ok()) {
    close(socket);
    fail(channel.status());
  }
  Client::set(std::make_unique<Client>(std::move(channel).value(), socket, std::chrono::milliseconds(patience_ms)));
}

// A new memfd with rings for a client and an executor; the caller owns the descriptor.
int make_rings(std::size_t bytes) {
  auto channel = rouse::ring::Channel::create(rouse::ring::Side::kClient, bytes);
  if (!channel.ok()) fail(channel.status());
  return dup(channel.value()->descriptor());
}

py::dict counters() {
  const auto& client = Client::get();
  py::dict all;
  all["messages"] = client.counters.messages;
  all["calls"] = client.counters.calls;
  all["learned"] = client.counters.learned;
  all["templates"] = client.counters.templates;
  all["waits"] = client.counters.waits;
  all["bytes"] = client.counters.bytes;
  return all;
}

const at::Tensor& tensor_of(py::handle object) {
  if (!THPVariable_Check(object.ptr())) throw py::type_error("a tensor is expected");
  return THPVariable_Unpack(object.ptr());
}

}  // namespace

PYBIND11_MODULE(_redirect, module) {
  rouse::bindings::add_requests(module);
  rouse::bindings::add_watched(module);
  module.def("register_backend", &rouse::redirect::register_backend);
  module.def("make_rings", &make_rings);
  module.def("connect", &connect, py::call_guard<py::gil_scoped_release>());
  module.def("disconnect", [] { Client::set(nullptr); }, py::call_guard<py::gil_scoped_release>());
  module.def("connected", &Client::connected);
  module.def("alive", [] { return Client::connected() && Client::get().alive(); });
  module.def("synchronize", [] { Client::get().synchronize(); }, py::call_guard<py::gil_scoped_release>());
  module.def("seed", [](std::uint64_t value) { Client::get().seed(0, value); });
  module.def("default_generator",
             [] { return py::reinterpret_steal<py::object>(THPGenerator_Wrap(rouse::redirect::default_generator())); });
  module.def("blocking", [](bool on) { Client::get().blocking = on; });
  module.def("counters", &counters);
  module.def("name_of", [](py::handle tensor) { return rouse::redirect::name_of(tensor_of(tensor)); });
  module.def("tensor_at", [](std::uint64_t address, py::handle dtype, const std::vector<std::int64_t>& sizes) {
    if (!THPDtype_Check(dtype.ptr())) throw py::type_error("a dtype is expected");
    const auto kind = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(rouse::redirect::tensor_at(address, kind, sizes)));
  });
  module.def("save_templates", [] {
    const auto hold = Client::get().lock();
    return py::bytes(Operators::get().save());
  });
  module.def("load_templates", [](const py::bytes& bytes) {
    const auto hold = Client::get().lock();
    return Operators::get().load(std::string(bytes));
  });
}
