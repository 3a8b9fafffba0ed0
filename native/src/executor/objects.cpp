#include "objects.h"

#include <ATen/Context.h>
#include <ATen/core/class_type.h>
#include <ATen/core/function.h>
#include <ATen/core/ivalue_inl.h>
#include <c10/util/Exception.h>
#include <torch/custom_class_detail.h>

#include <algorithm>
#include <bit>
#include <string_view>
#include <typeinfo>

#include "object_state.h"
#include "specs.h"

namespace rouse::executor {
namespace {

using wire::Item;
using wire::Tag;

constexpr int kMaxDepth = 8;

Status malformed() { return {Code::kInvalid, "OBJECT: its state is malformed"}; }

// From items to the value that the class's __setstate__ takes.
class StateDecoder {
 public:
  StateDecoder(wire::Reader reader, c10::Device device, const Objects& objects, const Objects::NextTensor& tensor,
               std::vector<at::Tensor>& parts)
      : reader_(reader), device_(device), objects_(objects), tensor_(tensor), parts_(parts) {}

  Status value(const c10::Type& type, c10::IValue& value, int depth = 0) {
    Item item;
    if (depth > kMaxDepth || !reader_.item(item)) return malformed();
    return this->value(type, item, value, depth);
  }
  bool done() const { return reader_.left() == 0; }

 private:
  Status value(const c10::Type& type, const Item& item, c10::IValue& value, int depth) {
    std::uint64_t word = 0;
    std::string_view text;
    switch (type.kind()) {
      case c10::TypeKind::OptionalType:
        if (item.tag == Tag::kNone) return {};
        return this->value(*type.containedType(0), item, value, depth);
      case c10::TypeKind::TensorType:
        return tensor(item, value);
      case c10::TypeKind::IntType:
        if (item.tag != Tag::kInt || !reader_.word(word)) return malformed();
        value = static_cast<std::int64_t>(word);
        return {};
      case c10::TypeKind::FloatType:
        if (item.tag != Tag::kDouble || !reader_.word(word)) return malformed();
        value = std::bit_cast<double>(word);
        return {};
      case c10::TypeKind::BoolType:
        if (item.tag != Tag::kBool) return malformed();
        value = item.count != 0;
        return {};
      case c10::TypeKind::StringType:
        if (item.tag != Tag::kString || !reader_.text(item.count, text)) return malformed();
        value = std::string(text);
        return {};
      case c10::TypeKind::TupleType:
        return tuple(type.containedTypes(), item, value, depth);
      case c10::TypeKind::ListType:
        return list(type.containedType(0), item, value, depth);
      case c10::TypeKind::ClassType:
        if (item.tag != Tag::kObject) return malformed();
        return objects_.find(item.count, type, value);
      case c10::TypeKind::AnyType:
        return any(item, value, depth);
      default:
        return {Code::kUnsupported, "its state has a " + type.str()};
    }
  }

  // Where the class takes whatever it finds, as convolutions do, the item says which type it is.
  Status any(const Item& item, c10::IValue& value, int depth) {
    switch (item.tag) {
      case Tag::kTensor:
        return this->value(*c10::TensorType::get(), item, value, depth);
      case Tag::kInt:
        return this->value(*c10::IntType::get(), item, value, depth);
      case Tag::kString:
        return this->value(*c10::StringType::get(), item, value, depth);
      case Tag::kTuple: {
        if (item.count > reader_.left() / 8) return malformed();
        const std::vector<c10::TypePtr> elements(item.count, c10::AnyType::get());
        return tuple(elements, item, value, depth);
      }
      case Tag::kIntList:
        return list(c10::IntType::get(), item, value, depth);
      case Tag::kList:
        return list(
            (item.flags & wire::kTensors) ? c10::TypePtr(c10::TensorType::get()) : c10::OptionalType::ofTensor(), item,
            value, depth);
      default:
        return malformed();
    }
  }

  Status tensor(const Item& item, c10::IValue& value) {
    TensorSpec spec;
    if (item.tag != Tag::kTensor || !read_spec(reader_, item, device_, spec)) return malformed();
    auto made = tensor_(spec);
    if (!made.ok()) return made.status();
    parts_.push_back(made.value());
    value = std::move(made).value();
    return {};
  }

  Status tuple(c10::ArrayRef<c10::TypePtr> types, const Item& item, c10::IValue& value, int depth) {
    if (item.tag != Tag::kTuple || item.count != types.size()) return malformed();
    std::vector<c10::IValue> elements(types.size());
    for (std::size_t i = 0; i < types.size(); ++i) {
      ROUSE_RETURN_IF_ERROR(this->value(*types[i], elements[i], depth + 1));
    }
    value = c10::ivalue::Tuple::create(std::move(elements));
    return {};
  }

  Status list(const c10::TypePtr& element, const Item& item, c10::IValue& value, int depth) {
    const bool whole = element->kind() == c10::TypeKind::IntType;
    if (item.tag != (whole ? Tag::kIntList : Tag::kList) || item.count > reader_.left() / 8) return malformed();
    if (whole) {
      c10::List<std::int64_t> numbers;
      numbers.resize(item.count);
      for (std::uint32_t i = 0; i < item.count; ++i) {
        std::uint64_t word = 0;
        (void)reader_.word(word);
        numbers.set(i, static_cast<std::int64_t>(word));
      }
      value = std::move(numbers);
      return {};
    }
    c10::impl::GenericList elements(element);
    for (std::uint32_t i = 0; i < item.count; ++i) {
      c10::IValue each;
      ROUSE_RETURN_IF_ERROR(this->value(*element, each, depth + 1));
      elements.push_back(std::move(each));
    }
    value = std::move(elements);
    return {};
  }

  wire::Reader reader_;
  c10::Device device_;
  const Objects& objects_;
  const Objects::NextTensor& tensor_;
  std::vector<at::Tensor>& parts_;
};

c10::IValue make_once(const c10::ClassTypePtr& type, const c10::IValue& state) {
  auto object = c10::ivalue::Object::create(c10::StrongTypePtr(nullptr, type), 1);
  (*type->findMethod("__setstate__"))({object, state});
  return object;
}

// A class packs for one of several engines, which round otherwise than each other: it has to be the client's.
Result<c10::IValue> make_as(const c10::ClassTypePtr& type, const c10::IValue& state,
                            const std::string& implementation) {
  auto& context = at::globalContext();
  const auto chosen = context.qEngine();
  auto engines = context.supportedQEngines();
  std::stable_partition(engines.begin(), engines.end(), [&](at::QEngine engine) { return engine == chosen; });
  std::string why;
  for (const auto engine : engines) {
    context.setQEngine(engine);
    try {
      auto object = make_once(type, state);
      const auto holder = object.toObjectRef().getSlot(0).toCapsule();
      const torch::CustomClassHolder& made = *holder;
      if (typeid(made).name() == implementation) {
        context.setQEngine(chosen);
        return object;
      }
      if (why.empty())
        why = std::string("it became a ") + typeid(made).name() + ", the client's is a " + implementation;
    } catch (const std::exception& error) {
      why = error.what();
    }
  }
  context.setQEngine(chosen);
  return Status(Code::kUnsupported, why.substr(0, why.find('\n')));
}

}  // namespace

Status Objects::make(std::uint32_t number, const std::string& class_name, const std::string& implementation,
                     wire::Reader state, c10::Device device, const NextTensor& tensor) {
  const auto type = torch::getCustomClass(class_name);
  const auto* const setstate = type ? type->findMethod("__setstate__") : nullptr;
  if (!setstate) return put_broken(number, "there is no class " + class_name + " that is made from a state");
  Entry entry;
  c10::IValue value;
  StateDecoder decoder(state, device, *this, tensor, entry.parts);
  const Status decoded = decoder.value(*setstate->getSchema().arguments().at(1).type(), value);
  if (decoded.code() == Code::kInvalid || (decoded.ok() && !decoder.done())) {
    return decoded.ok() ? malformed() : decoded;
  }
  if (!decoded.ok()) return put_broken(number, decoded.text());
  if (const auto wrong = wrong_state(class_name, value); !wrong.empty()) {
    return put_broken(number, "the state of a " + class_name + ": " + std::string(wrong));
  }
  auto made = make_as(type, value, implementation);
  if (!made.ok()) return put_broken(number, made.status().text());
  entry.object = std::move(made).value();
  return put(number, std::move(entry));
}

Status Objects::put_broken(std::uint32_t number, std::string why) {
  Entry entry;
  entry.broken = std::move(why);
  return put(number, std::move(entry));
}

Status Objects::put(std::uint32_t number, Entry entry) {
  if (entries_.size() >= wire::kMaxObjects) {
    return {Code::kInvalid, "OBJECT: a session has at most " + std::to_string(wire::kMaxObjects)};
  }
  if (!entries_.emplace(number, std::move(entry)).second) {
    return {Code::kInvalid, "OBJECT " + std::to_string(number) + ", which is there already"};
  }
  return {};
}

Status Objects::find(std::uint32_t number, const c10::Type& type, c10::IValue& value) const {
  const auto found = entries_.find(number);
  if (found == entries_.end()) return {Code::kInvalid, "object " + std::to_string(number) + " is not there"};
  if (!found->second.broken.empty()) {
    return {Code::kUnsupported, "an object could not be made in the executor: " + found->second.broken};
  }
  if (*found->second.object.type() != type) {
    return {Code::kInvalid, "object " + std::to_string(number) + " is not a " + type.str()};
  }
  value = found->second.object;
  return {};
}

}  // namespace rouse::executor
