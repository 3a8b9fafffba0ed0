// From the items of a message to what tensors and results look like, and back.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rouse/executor/operation.h"
#include "rouse/wire/words.h"

namespace rouse::executor {

// Whether plain tensors have that dtype: not those of quantised tensors.
bool known_dtype(std::uint8_t dtype);
// Sets spec.required_bytes: up to the end of the last element. False: overflow or negative numbers.
bool required_bytes(TensorSpec& spec);
// Reads what follows the first word of the item of a tensor on `device`. False: malformed, or not within bounds.
bool read_spec(wire::Reader& reader, const wire::Item& item, c10::Device device, TensorSpec& spec);
void write_spec(wire::Writer& items, wire::Tag tag, std::uint32_t count, const TensorSpec& spec);
bool read_results(wire::Reader& reader, std::size_t slots, c10::Device device, std::vector<ResultSpec>& results);
void write_result(wire::Writer& items, const ResultSpec& result);

}  // namespace rouse::executor
