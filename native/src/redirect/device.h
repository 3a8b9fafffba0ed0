// What makes PrivateUse1 the device "rouse": its allocator, guard, generators.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <cstdint>

namespace rouse::redirect {

inline c10::Device rouse_device() { return {c10::DeviceType::PrivateUse1, 0}; }
c10::Allocator& rouse_allocator();
// A storage of `bytes` bytes whose memory the executor has under that name already.
c10::Storage make_storage(std::uint64_t name, std::uint64_t bytes);
// Which of the session's generators it is; throws where it is another device's.
std::uint32_t generator_number(const at::Generator& generator);
const at::Generator& default_generator();
// Registers guard, allocator and hooks. Once.
void register_device();

}  // namespace rouse::redirect
