#include "operators.h"

#include <ATen/core/jit_type.h>

#include <bit>
#include <cstring>

namespace rouse::redirect {
namespace {

using wire::Item;
using wire::Tag;

// Shapes that depend on data without PyTorch's own tag saying so: ranks and residuals. Quantisation, too.
constexpr std::string_view kDataDependent[] = {
    "aten::linalg_lstsq", "aten::histogramdd_bin_edges", "aten::bincount",       "aten::_linalg_lstsq",
    "aten::_ctc_loss",    "aten::_pack_padded_sequence", "aten::_embedding_bag", "aten::_embedding_bag_forward_only",
    "aten::quantize_per_tensor_dynamic", "aten::quantize_per_channel", "aten::_make_per_channel_quantized_tensor",
    "aten::quantize_per_tensor.tensor_qparams", "aten::quantize_per_tensor.tensors"};
constexpr std::string_view kMagic = "rouse templates 1 ";
constexpr std::size_t kMaxSaved = 1u << 18;

bool read_described(wire::Reader& reader, const Item& item, Described& tensor) {
  tensor.tag = item.tag;
  tensor.index = item.count;
  if (item.tag == Tag::kUndefined) return true;
  std::uint64_t offset;
  if (item.tag != Tag::kNew && item.tag != Tag::kAlias && item.tag != Tag::kShared) return false;
  if (item.dimensions > wire::kMaxDimensions || item.dtype >= static_cast<int>(c10::ScalarType::NumOptions) ||
      !reader.word(offset)) {
    return false;
  }
  tensor.dtype = static_cast<c10::ScalarType>(item.dtype);
  tensor.flags = item.flags;
  tensor.offset = static_cast<std::int64_t>(offset);
  tensor.sizes.resize(item.dimensions);
  tensor.strides.resize(item.dimensions);
  if (!reader.words(item.dimensions, std::span(tensor.sizes.data(), tensor.sizes.size())) ||
      !reader.words(item.dimensions, std::span(tensor.strides.data(), tensor.strides.size()))) {
    return false;
  }
  if (item.flags & wire::kQuantized) {
    const std::span<const std::int64_t> sizes(tensor.sizes.data(), tensor.sizes.size());
    tensor.quantization = quantized::read(reader, tensor.dtype, sizes, c10::kCPU);
    if (!tensor.quantization) return false;
  }
  return reader.word(tensor.storage_bytes);
}

}  // namespace

bool Outcomes::read(std::span<const std::byte> items) {
  wire::Reader reader(items);
  list.clear();
  made = 0;
  while (reader.left() != 0) {
    Item item;
    if (!reader.item(item) || list.size() >= 1024) return false;
    Outcome outcome;
    std::uint64_t first = 0, second = 0;
    switch (item.tag) {
      case Tag::kList:
        outcome.kind = Outcome::Kind::kList;
        if (item.count > wire::kMaxSlots) return false;
        outcome.tensors.resize(item.count);
        for (auto& tensor : outcome.tensors) {
          Item each;
          if (!reader.item(each) || !read_described(reader, each, tensor)) return false;
        }
        break;
      case Tag::kNone:
        outcome.kind = Outcome::Kind::kNone;
        break;
      case Tag::kBool:
        outcome.kind = Outcome::Kind::kBool;
        outcome.integer = item.count;
        break;
      case Tag::kInt:
        outcome.kind = Outcome::Kind::kInt;
        if (!reader.word(first)) return false;
        outcome.integer = static_cast<std::int64_t>(first);
        break;
      case Tag::kDouble:
        outcome.kind = Outcome::Kind::kDouble;
        if (!reader.word(first)) return false;
        outcome.real = std::bit_cast<double>(first);
        break;
      case Tag::kComplex:
        outcome.kind = Outcome::Kind::kComplex;
        if (!reader.word(first) || !reader.word(second)) return false;
        outcome.real = std::bit_cast<double>(first);
        outcome.imaginary = std::bit_cast<double>(second);
        break;
      default:
        outcome.tensors.resize(1);
        if (!read_described(reader, item, outcome.tensors[0])) return false;
    }
    for (const auto& tensor : outcome.tensors) made += tensor.tag == Tag::kNew ? 1 : 0;
    list.push_back(std::move(outcome));
  }
  return true;
}

Operator::Operator(const c10::OperatorHandle& given)
    : handle(given), name(given.operator_name().name), overload(given.operator_name().overload_name) {
  const auto& schema = handle.schema();
  for (const auto& result : schema.returns()) {
    int argument = -1;
    if (result.alias_info() && result.alias_info()->isWrite()) {
      for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
        const auto* info = schema.arguments()[i].alias_info();
        if (info && info->isWrite() && info->beforeSets() == result.alias_info()->beforeSets()) {
          argument = static_cast<int>(i);
        }
      }
    }
    returns_argument.push_back(argument);
    const auto kind = result.type()->kind();
    const bool list = kind == c10::TypeKind::ListType;
    returns_object = returns_object || kind == c10::TypeKind::ClassType;
    return_is_list.push_back(list);
    if (kind != c10::TypeKind::TensorType &&
        !(list && result.type()->containedType(0)->kind() == c10::TypeKind::TensorType)) {
      has_values = true;
    }
  }
  no_returns = schema.returns().empty();
  masks = name == "aten::index" || name == "aten::_unsafe_index";
  data_dependent = handle.hasTag(at::Tag::dynamic_output_shape) || handle.hasTag(at::Tag::data_dependent_output);
  const std::string full = overload.empty() ? name : name + "." + overload;
  for (const auto other : kDataDependent) data_dependent = data_dependent || name == other || full == other;
  if (masks) data_dependent = false;
}

std::uint64_t hash_of(std::span<const std::uint64_t> words) {
  std::uint64_t state = 0x9e37'79b9'7f4a'7c15ull ^ words.size();
  for (const auto word : words) {
    const auto product = static_cast<unsigned __int128>(state ^ word) * 0xe703'7ed1'a0b4'28dbull;
    state = static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64) ^ (state << 5);
  }
  return state;
}

Operators& Operators::get() {
  static auto* operators = new Operators();
  return *operators;
}

Operator& Operators::of(const c10::OperatorHandle& handle) {
  auto& found = operators_[&handle.schema()];
  if (!found) found = std::make_unique<Operator>(handle);
  return *found;
}

std::uint32_t Operators::assign(Operator& operation, Template& made) {
  made.number = static_cast<std::uint32_t>(sent_.size());
  sent_.emplace_back(&operation, &made);
  return made.number;
}

void Operators::forget_numbers() {
  // The templates go, too: what they knew is in the shapes, and a bound on the one bounds the other.
  for (auto& [schema, operation] : operators_) operation->templates.clear();
  sent_.clear();
  count_ = 0;
}

Template& Operators::add(Operator& operation, std::uint64_t hash, std::span<const std::uint64_t> key) {
  auto made = std::make_unique<Template>();
  made->key.assign(key.begin(), key.end());
  auto& result = *made;
  operation.templates.emplace(hash, std::move(made));
  ++count_;
  return result;
}

// The key with the values of 0-d tensors left out: no shape depends on them, or the operator is data-dependent.
std::string Operators::shape_key(const Operator& operation, std::span<const std::uint64_t> key) {
  std::string text = operation.name + "." + operation.overload;
  text.push_back('\0');
  const std::size_t start = text.size();
  text.append(reinterpret_cast<const char*>(key.data()), key.size_bytes());
  for (std::size_t at = 0; at < key.size();) {
    const auto item = std::bit_cast<Item>(key[at]);
    std::size_t words = 0;
    switch (item.tag) {
      case Tag::kTensor:
        words = 1 + 2 * std::size_t{item.dimensions};
        if (item.flags & wire::kQuantized) words += quantized::count_of(key[at + 1 + words]);
        break;
      case Tag::kNumber:
        std::memset(text.data() + start + 8 * (at + 1), 0, 16);
        words = 2;
        break;
      case Tag::kInt:
      case Tag::kDouble:
        words = 1;
        break;
      case Tag::kComplex:
        words = 2;
        break;
      case Tag::kString:
        words = wire::padded(item.count) / 8;
        break;
      case Tag::kIntList:
      case Tag::kDoubleList:
      case Tag::kBoolList:
        words = item.count;
        break;
      default:
        break;
    }
    at += 1 + words;
  }
  return text;
}

const Outcomes* Operators::expected(Operator& operation, std::span<const std::uint64_t> key,
                                    std::vector<std::byte>& items) {
  if (operation.data_dependent || operation.has_values) return nullptr;
  const auto found = shapes_.find(shape_key(operation, key));
  if (found == shapes_.end()) return nullptr;
  items = found->second.items;
  return &found->second.outcomes;
}

void Operators::learnt(Operator& operation, std::span<const std::uint64_t> key, std::span<const std::byte> items) {
  if (shapes_.size() >= kMaxSaved) shapes_.clear();
  auto& shape = shapes_[shape_key(operation, key)];
  shape.items.assign(items.begin(), items.end());
  (void)shape.outcomes.read(items);
}

void Operators::distrust(std::uint32_t number) {
  if (number >= sent_.size() || !sent_[number].first) return;
  Operator& operation = *sent_[number].first;
  operation.data_dependent = true;
  for (auto& [hash, each] : operation.templates) {
    shapes_.erase(shape_key(operation, each->key));
    each->known = false;
  }
}

std::string Operators::save() const {
  std::string bytes(kMagic);
  for (const auto& [key, shape] : shapes_) {
    const std::uint64_t sizes[2] = {key.size(), shape.items.size()};
    bytes.append(reinterpret_cast<const char*>(sizes), sizeof(sizes));
    bytes += key;
    bytes.append(reinterpret_cast<const char*>(shape.items.data()), shape.items.size());
  }
  return bytes;
}

std::int64_t Operators::load(const std::string& bytes) {
  if (!bytes.starts_with(kMagic)) return -1;
  std::size_t at = kMagic.size();
  std::int64_t taken = 0;
  while (at < bytes.size() && shapes_.size() < kMaxSaved) {
    std::uint64_t sizes[2];
    if (bytes.size() - at < sizeof(sizes)) return -1;
    std::memcpy(sizes, bytes.data() + at, sizeof(sizes));
    at += sizeof(sizes);
    if (sizes[0] > wire::kMaxMessageBytes || sizes[1] > wire::kMaxMessageBytes ||
        sizes[0] + sizes[1] > bytes.size() - at) {
      return -1;
    }
    Shape shape;
    const auto* items = reinterpret_cast<const std::byte*>(bytes.data() + at + sizes[0]);
    shape.items.assign(items, items + sizes[1]);
    if (!shape.outcomes.read(shape.items)) return -1;
    shapes_.emplace(bytes.substr(at, sizes[0]), std::move(shape));
    at += sizes[0] + sizes[1];
    ++taken;
  }
  return taken;
}

}  // namespace rouse::redirect
