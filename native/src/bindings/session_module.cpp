// rouse_native._session: an instance's end of a session, as bytes. Needs no PyTorch.
#include <pybind11/pybind11.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "rouse/serve/session_client.h"

namespace py = pybind11;

namespace {

using rouse::Status;
using rouse::serve::SessionClient;

// An exception with the code's name first, which the typed layer takes apart.
[[noreturn]] void raise(const Status& status) { throw std::runtime_error(status.describe()); }

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

std::unique_ptr<SessionClient> connect(const std::string& path, double timeout_s) {
  auto client = [&] {
    const py::gil_scoped_release release;
    return SessionClient::connect(path, milliseconds(timeout_s));
  }();
  if (!client.ok()) raise(client.status());
  return std::move(client).value();
}

void send(SessionClient& client, const py::bytes& message, double timeout_s) {
  const std::string_view bytes = message;
  const Status status = [&]() -> Status {
    const py::gil_scoped_release release;
    auto& out = client.channel().out();
    auto room = out.reserve(bytes.size(), rouse::ring::Clock::now() + milliseconds(timeout_s));
    if (!room.ok()) return room.status();
    std::memcpy(room.value(), bytes.data(), bytes.size());
    out.commit(bytes.size());
    out.flush();
    return {};
  }();
  if (!status.ok()) raise(status);
}

// The next message; none where none came in time.
py::object receive(SessionClient& client, double timeout_s) {
  auto message = [&] {
    const py::gil_scoped_release release;
    return client.channel().in().next(rouse::ring::Clock::now() + milliseconds(timeout_s));
  }();
  if (!message.ok()) raise(message.status());
  if (message.value().empty()) return py::none();
  py::bytes copy(reinterpret_cast<const char*>(message.value().data()), message.value().size());
  client.channel().in().release();
  return copy;
}

}  // namespace

PYBIND11_MODULE(_session, module) {
  py::class_<SessionClient>(module, "SessionClient")
      .def_static("connect", &connect, py::arg("path"), py::arg("timeout_s"))
      .def("send", &send, py::arg("message"), py::arg("timeout_s"))
      .def("receive", &receive, py::arg("timeout_s"));
}
