// rouse_native._redirect.Watched: memory of inputs that says whether it was read.
#include "../redirect/watched.h"

#include <pybind11/pybind11.h>

#include <stdexcept>

namespace py = pybind11;

namespace rouse::bindings {

void add_watched(py::module_& module) {
  using redirect::Watched;
  py::class_<Watched>(module, "Watched", py::buffer_protocol())
      .def(py::init([](std::size_t bytes) {
        auto made = Watched::make(bytes);
        if (!made.ok()) throw std::bad_alloc();
        return std::move(made).value();
      }))
      .def_buffer([](Watched& memory) {
        return py::buffer_info(memory.data(), sizeof(std::uint8_t), py::format_descriptor<std::uint8_t>::format(),
                               static_cast<py::ssize_t>(memory.size()));
      })
      .def("watch",
           [](Watched& memory) {
             const Status status = memory.watch();
             if (!status.ok()) throw std::runtime_error(status.text());
           })
      .def("unwatch", &Watched::unwatch);
}

}  // namespace rouse::bindings
