// rouse_native._memory: devices, ranges, images and swaps. rouse_native/memory.py says what each does.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "rouse/device/cuda.h"
#include "rouse/device/host.h"
#include "rouse/memory/host_image.h"
#include "rouse/memory/space.h"
#include "rouse/transfer/elbow.h"
#include "rouse/transfer/link.h"
#include "status.h"

namespace py = pybind11;

namespace rouse::bindings {
namespace {

using transfer::Extent;

// Longer waits are cut to this: what is added to the clock must not wrap.
constexpr double kMostSeconds = 1e6;

transfer::Deadline in(double seconds) {
  const std::chrono::duration<double> wait(std::clamp(seconds, 0.0, kMostSeconds));
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(wait);
}

std::vector<Extent> extents(const std::vector<std::pair<uint64_t, uint64_t>>& pairs) {
  std::vector<Extent> result;
  result.reserve(pairs.size());
  for (const auto& [offset, bytes] : pairs) result.push_back({offset, bytes});
  return result;
}

// Python may drop its objects in any order: each holds what it stands on.
struct Space {
  explicit Space(std::shared_ptr<device::Device> on) : device(std::move(on)), space(*device) {}
  std::shared_ptr<device::Device> device;
  memory::Space space;
};

struct Swap {
  std::shared_ptr<transfer::Swap> swap;
  std::shared_ptr<transfer::Residency> residency;
};

struct Link {
  std::shared_ptr<device::Device> device;
  std::unique_ptr<transfer::Link> link;
  ~Link() {
    py::gil_scoped_release released;
    link.reset();
  }
};

struct Pin {
  std::shared_ptr<device::Device> device;
  std::shared_ptr<memory::HostImage> image;
  std::unique_ptr<device::PinnedMemory> memory;
};

std::tuple<uint64_t, uint64_t, uint64_t, uint64_t> tuple(const device::Usage& usage) {
  return {usage.capacity, usage.free, usage.reserved, usage.mapped};
}

void bind_device(py::module_& module) {
  py::class_<device::Device, std::shared_ptr<device::Device>>(module, "Device")
      .def_static("host",
                  [](uint64_t capacity, bool prefault) {
                    return std::shared_ptr<device::Device>(
                        check(unlocked([&] { return device::make_host_device({capacity, prefault}); })));
                  })
      .def_static("cuda",
                  [](int ordinal, uint64_t capacity) {
                    return std::shared_ptr<device::Device>(check(unlocked(
                        [&] { return device::make_cuda_device({.ordinal = ordinal, .capacity = capacity}); })));
                  })
      .def_property_readonly("kind", &device::Device::kind)
      .def_property_readonly("description", &device::Device::describe)
      .def_property_readonly("granularity", &device::Device::granularity)
      .def("usage", [](const device::Device& self) { return tuple(self.usage()); })
      .def("measure_curve", [](device::Device& self, uint64_t to, const memory::HostImage& image,
                               const std::vector<uint64_t>& sizes, int rounds) {
        const auto curve = check(
            unlocked([&] { return transfer::measure_curve(self, to, image.data(), image.bytes(), sizes, rounds); }));
        std::vector<std::pair<uint64_t, double>> points;
        for (const transfer::Point& point : curve) points.emplace_back(point.group_bytes, point.bytes_per_second);
        return points;
      })
      .def("pin", [](std::shared_ptr<device::Device> self, std::shared_ptr<memory::HostImage> image) {
        auto memory = check(unlocked([&] { return self->pin_existing(image->data(), image->bytes()); }));
        return std::make_unique<Pin>(Pin{std::move(self), std::move(image), std::move(memory)});
      });
  py::class_<Pin>(module, "Pin");
}

void bind_space(py::module_& module) {
  py::class_<memory::HostImage, std::shared_ptr<memory::HostImage>>(module, "HostImage")
      .def_static("open",
                  [](const std::string& path, uint64_t expected) {
                    return std::shared_ptr<memory::HostImage>(
                        check(unlocked([&] { return memory::HostImage::open(path, expected); })));
                  })
      .def_property_readonly("address",
                             [](const memory::HostImage& self) { return reinterpret_cast<uint64_t>(self.data()); })
      .def_property_readonly("size", &memory::HostImage::bytes);
  py::class_<Space>(module, "Space")
      .def(py::init<std::shared_ptr<device::Device>>())
      .def("reserve",
           [](Space& self, uint64_t address, uint64_t bytes, int region) {
             if (region < 0 || region > 2) raise(Status(Code::kInvalid, "a region is model, state or scratch"));
             check(unlocked([&] { return self.space.reserve(address, bytes, static_cast<memory::Region>(region)); }));
           })
      .def("map", [](Space& self, uint64_t address) { check(unlocked([&] { return self.space.map(address); })); })
      .def("release",
           [](Space& self, uint64_t address) { check(unlocked([&] { return self.space.release(address); })); })
      .def("trim", [](Space& self) { check(unlocked([&] { return self.space.trim(); })); })
      .def("usage", [](const Space& self) { return tuple(self.space.usage()); })
      .def("check", [](const Space& self) { check(self.space.check()); })
      .def("ranges",
           [](const Space& self) {
             std::vector<std::tuple<uint64_t, uint64_t, int, bool>> found;
             for (const auto& range : self.space.ranges()) {
               found.emplace_back(range.address, range.bytes, static_cast<int>(range.region), range.mapped);
             }
             return found;
           })
      // The caller answers for not using it after the range is released.
      .def("view", [](const Space& self, uint64_t address, uint64_t bytes) {
        for (const auto& range : self.space.ranges()) {
          if (range.mapped && address >= range.address && bytes <= range.bytes &&
              address - range.address <= range.bytes - bytes) {
            return py::memoryview::from_memory(reinterpret_cast<void*>(address), static_cast<py::ssize_t>(bytes));
          }
        }
        raise(Status(Code::kInvalid, "those bytes are not inside one mapped range"));
      });
}

void bind_transfer(py::module_& module) {
  py::class_<Swap>(module, "Swap")
      .def("wait", [](Swap& self, double seconds) { check(unlocked([&] { return self.swap->wait(in(seconds)); })); })
      .def("cancel", [](Swap& self) { self.swap->cancel(); })
      .def_property_readonly("over", [](const Swap& self) { return self.swap->over(); })
      .def_property_readonly("copied_bytes", [](const Swap& self) { return self.swap->copied_bytes(); })
      .def_property_readonly("took_s",
                             [](const Swap& self) { return std::chrono::duration<double>(self.swap->took()).count(); })
      .def("is_ready",
           [](const Swap& self, uint64_t address, uint64_t bytes) { return self.residency->is_ready(address, bytes); })
      .def("wait_ready",
           [](Swap& self, uint64_t address, uint64_t bytes, double seconds) {
             if (self.residency->is_ready(address, bytes)) return;
             check(unlocked([&] { return self.residency->wait_ready(address, bytes, in(seconds)); }));
           })
      .def("wait_rows",
           [](Swap& self, uint64_t table, uint64_t row_bytes, const std::vector<int64_t>& rows, double seconds) {
             check(unlocked([&] { return self.residency->wait_rows(table, row_bytes, rows, in(seconds)); }));
           })
      .def_property_readonly("waits", [](const Swap& self) { return self.residency->waits(); })
      .def_property_readonly(
          "waited_s", [](const Swap& self) { return std::chrono::duration<double>(self.residency->waited()).count(); });
  py::class_<Link>(module, "Link")
      .def(py::init([](std::shared_ptr<device::Device> device, uint64_t bytes_per_second, uint64_t quantum) {
        transfer::LinkOptions options;
        options.bytes_per_second = bytes_per_second;
        options.quantum_bytes = quantum;
        auto link = check(transfer::Link::make(*device, options));
        return std::unique_ptr<Link>(new Link{std::move(device), std::move(link)});
      }))
      .def("start", [](Link& self, uint64_t address, std::shared_ptr<memory::HostImage> image,
                       const std::vector<std::pair<uint64_t, uint64_t>>& order,
                       const std::vector<std::pair<uint64_t, uint64_t>>& tables, uint64_t group, uint32_t weight) {
        transfer::SwapRequest request;
        request.residency = std::make_shared<transfer::Residency>(address, image->bytes());
        request.plan = check(transfer::plan_groups(image->bytes(), extents(order), extents(tables), group));
        request.image = image->data();
        request.weight = weight;
        request.keep = std::move(image);
        Swap swap;
        swap.residency = request.residency;
        swap.swap = check(self.link->start(std::move(request)));
        return swap;
      });
  module.def("elbow", [](const std::vector<std::pair<uint64_t, double>>& points, double share) {
    std::vector<transfer::Point> curve;
    for (const auto& [bytes, speed] : points) curve.push_back({bytes, speed});
    return transfer::elbow(curve, share);
  });
}

}  // namespace
}  // namespace rouse::bindings

PYBIND11_MODULE(_memory, module) {
  rouse::bindings::bind_device(module);
  rouse::bindings::bind_space(module);
  rouse::bindings::bind_transfer(module);
  module.attr("MODEL_BASE") = rouse::device::kModelBase;
  module.attr("BLOCK_BYTES") = rouse::transfer::kBlockBytes;
}
