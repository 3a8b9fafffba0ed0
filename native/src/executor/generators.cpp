#include "rouse/executor/generators.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Utils.h>
#include <ATen/ops/empty.h>
#include <c10/core/DefaultDtype.h>

#include <cstring>
#include <exception>
#include <string>

namespace rouse::executor {

Generators::Generators(c10::Device device) : device_(device) { at(0); }

at::Generator Generators::make() const {
  if (device_.is_cpu()) return at::detail::createCPUGenerator(c10::default_rng_seed_val);
  at::Generator made = at::globalContext().getAcceleratorHooksInterface(device_.type()).getNewGenerator(device_.index());
  made.set_current_seed(c10::default_rng_seed_val);
  return made;
}

at::Generator& Generators::at(std::uint32_t number) {
  auto found = generators_.find(number);
  if (found == generators_.end()) {
    found = generators_.emplace(number, make()).first;
  }
  return found->second;
}

Status Generators::seed(std::uint32_t number, std::uint64_t seed) {
  at(number).set_current_seed(seed);
  return {};
}

Status Generators::set_state(std::uint32_t number, std::span<const std::byte> state) {
  auto tensor = at::empty({static_cast<std::int64_t>(state.size())}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), state.data(), state.size());
  try {
    at(number).set_state(tensor);
  } catch (const std::exception& error) {
    return {Code::kInvalid, std::string("state of a generator: ") + error.what()};
  }
  return {};
}

std::vector<std::byte> Generators::state(std::uint32_t number) {
  auto tensor = at(number).get_state();
  const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {data, data + tensor.nbytes()};
}

void Generators::drop(std::uint32_t number) {
  if (number != 0) generators_.erase(number);
}

}  // namespace rouse::executor
