#include "specs.h"

#include <c10/core/ScalarType.h>

#include <span>

namespace rouse::executor {

using wire::Item;
using wire::Tag;

bool known_dtype(std::uint8_t dtype) {
  return dtype < static_cast<std::uint8_t>(c10::ScalarType::NumOptions) &&
         c10::isQIntType(static_cast<c10::ScalarType>(dtype)) == false &&
         static_cast<c10::ScalarType>(dtype) != c10::ScalarType::Undefined;
}

bool required_bytes(TensorSpec& spec) {
  if (spec.offset < 0) return false;
  std::int64_t last = spec.offset;
  bool empty = false;
  for (std::size_t i = 0; i < spec.sizes.size(); ++i) {
    if (spec.sizes[i] < 0 || spec.strides[i] < 0) return false;
    if (spec.sizes[i] == 0) empty = true;
    std::int64_t reach = 0;
    if (spec.sizes[i] > 1 && __builtin_mul_overflow(spec.sizes[i] - 1, spec.strides[i], &reach)) return false;
    if (__builtin_add_overflow(last, reach, &last)) return false;
  }
  std::int64_t numel = 1;
  for (const auto size : spec.sizes) {
    if (__builtin_mul_overflow(numel, size, &numel)) return false;
  }
  std::int64_t bytes = 0;
  if (!empty && (__builtin_add_overflow(last, 1, &last) ||
                 __builtin_mul_overflow(last, static_cast<std::int64_t>(c10::elementSize(spec.dtype)), &bytes))) {
    return false;
  }
  spec.required_bytes = static_cast<std::uint64_t>(bytes);
  return true;
}

bool read_spec(wire::Reader& reader, const Item& item, c10::Device device, TensorSpec& spec) {
  std::uint64_t offset;
  const bool is_quantized = (item.flags & wire::kQuantized) != 0;
  if ((!is_quantized && !known_dtype(item.dtype)) || item.dimensions > wire::kMaxDimensions || !reader.word(offset))
    return false;
  spec.dtype = static_cast<c10::ScalarType>(item.dtype);
  spec.flags = item.flags;
  // What PyTorch asserts of such tensors.
  if ((item.flags & wire::kConjugate) && !c10::isComplexType(spec.dtype)) return false;
  if ((item.flags & wire::kWrapped) && item.dimensions != 0) return false;
  if (is_quantized && item.flags != wire::kQuantized) return false;
  spec.offset = static_cast<std::int64_t>(offset);
  spec.sizes.resize(item.dimensions);
  spec.strides.resize(item.dimensions);
  if (!reader.words(item.dimensions, std::span(spec.sizes.data(), spec.sizes.size())) ||
      !reader.words(item.dimensions, std::span(spec.strides.data(), spec.strides.size()))) {
    return false;
  }
  if (is_quantized) {
    const std::span<const std::int64_t> sizes(spec.sizes.data(), spec.sizes.size());
    spec.quantization = quantized::read(reader, spec.dtype, sizes, device);
    if (!spec.quantization) return false;
  }
  return required_bytes(spec);
}

void write_spec(wire::Writer& items, Tag tag, std::uint32_t count, const TensorSpec& spec) {
  items.item(tag, count, static_cast<std::uint8_t>(spec.dtype), spec.flags,
             static_cast<std::uint8_t>(spec.sizes.size()));
  items.word(static_cast<std::uint64_t>(spec.offset));
  items.words({spec.sizes.data(), spec.sizes.size()});
  items.words({spec.strides.data(), spec.strides.size()});
  if (spec.quantization) items.bytes(std::as_bytes(std::span(spec.quantization->words)));
}

bool read_results(wire::Reader& reader, std::size_t slots, c10::Device device, std::vector<ResultSpec>& results) {
  std::uint32_t made = 0;
  while (reader.left() != 0) {
    Item item;
    if (!reader.item(item) || results.size() >= wire::kMaxSlots) return false;
    ResultSpec result;
    switch (item.tag) {
      case Tag::kUndefined:
        result.origin = Origin::kUndefined;
        results.push_back(std::move(result));
        continue;
      case Tag::kList:  // Its elements follow.
        continue;
      case Tag::kNew:
        result.origin = Origin::kNew;
        result.index = made++;
        break;
      case Tag::kAlias:
        result.origin = Origin::kSlot;
        if (item.count >= slots) return false;
        result.index = item.count;
        break;
      case Tag::kShared:
        result.origin = Origin::kShared;
        if (item.count >= made) return false;
        result.index = item.count;
        break;
      default:
        return false;
    }
    if (!read_spec(reader, item, device, result.spec) || !reader.word(result.storage_bytes)) return false;
    results.push_back(std::move(result));
  }
  return true;
}

void write_result(wire::Writer& items, const ResultSpec& result) {
  switch (result.origin) {
    case Origin::kUndefined:
      items.item(Tag::kUndefined);
      return;
    case Origin::kNew:
      write_spec(items, Tag::kNew, result.index, result.spec);
      break;
    case Origin::kSlot:
      write_spec(items, Tag::kAlias, result.index, result.spec);
      break;
    case Origin::kShared:
      write_spec(items, Tag::kShared, result.index, result.spec);
      break;
  }
  items.word(result.storage_bytes);
}

}  // namespace rouse::executor
