#include "objects.h"

#include <ATen/core/class_type.h>
#include <ATen/core/function.h>
#include <ATen/core/ivalue_inl.h>
#include <c10/util/Exception.h>

#include <limits>
#include <string>
#include <typeinfo>

#include "device.h"
#include "encode.h"

namespace rouse::redirect {

using wire::Tag;

Objects& Objects::get() {
  static auto* objects = new Objects();
  return *objects;
}

void Objects::forget() {
  for (const auto& [holder, sent] : sent_) unwanted_.push_back(sent.number);
  sent_.clear();
}

void Objects::drop_unwanted(Client& client) {
  for (auto each = sent_.begin(); each != sent_.end();) {
    if (!each->second.holder.expired()) {
      ++each;
      continue;
    }
    unwanted_.push_back(each->second.number);
    each = sent_.erase(each);
  }
  for (const auto number : unwanted_) {
    const wire::DropObject head{{}, number, 0};
    client.send(wire::Kind::kDropObject, std::as_bytes(std::span(&head, 1)), {});
  }
  unwanted_.clear();
}

// What the class's __getstate__ gave, in the items that its __setstate__ is made from there.
void Objects::write(const Operator& operation, const c10::IValue& value, State& state) {
  auto& items = state.items;
  if (value.isTensor()) {
    const at::Tensor there = value.toTensor().detach().to(rouse_device());
    encode_tensor(operation, there, items);
    state.tensors.push_back(there);
  } else if (value.isNone()) {
    items.item(Tag::kNone);
  } else if (value.isInt()) {
    items.item(Tag::kInt);
    items.word(static_cast<std::uint64_t>(value.toInt()));
  } else if (value.isDouble()) {
    items.item(Tag::kDouble);
    items.real(value.toDouble());
  } else if (value.isBool()) {
    items.item(Tag::kBool, value.toBool() ? 1 : 0);
  } else if (value.isString()) {
    items.item(Tag::kString, static_cast<std::uint32_t>(value.toStringRef().size()));
    items.text(value.toStringRef());
  } else if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    items.item(Tag::kTuple, static_cast<std::uint32_t>(elements.size()));
    for (const auto& each : elements) write(operation, each, state);
  } else if (value.isIntList()) {
    const auto numbers = value.toIntVector();
    items.item(Tag::kIntList, static_cast<std::uint32_t>(numbers.size()));
    items.words({numbers.data(), numbers.size()});
  } else if (value.isList()) {
    const auto elements = value.toListRef();
    items.item(Tag::kList, static_cast<std::uint32_t>(elements.size()), 0, value.isTensorList() ? wire::kTensors : 0);
    for (const auto& each : elements) write(operation, each, state);
  } else if (value.isObject()) {
    items.item(Tag::kObject, number_of(operation, value));
  } else {
    refuse(operation, "an object whose state is not of tensors and numbers is not redirected");
  }
}

std::uint32_t Objects::number_of(const Operator& operation, const c10::IValue& object) {
  Client& client = Client::get();
  const auto type = object.toObjectRef().type();
  auto* const getstate = type->findMethod("__getstate__");
  if (!object.isCustomClass() || !getstate) refuse(operation, "an object that tells no state is not redirected");
  const auto holder = object.toObjectRef().getSlot(0).toCapsule();
  {
    const auto hold = client.lock();
    if (epoch_ != Client::epoch()) {
      // Another executor, which was sent nothing yet.
      sent_.clear();
      unwanted_.clear();
      epoch_ = Client::epoch();
    }
    const auto found = sent_.find(holder.get());
    if (found != sent_.end()) return found->second.number;
  }
  State state;
  write(operation, (*getstate)({object}), state);
  const std::string name = type->name()->qualifiedName();
  const torch::CustomClassHolder& made = *holder;
  const std::string implementation = typeid(made).name();
  TORCH_CHECK(name.size() <= std::numeric_limits<std::uint16_t>::max() &&
                  implementation.size() <= std::numeric_limits<std::uint16_t>::max() &&
                  state.tensors.size() <= wire::kMaxSlots &&
                  state.items.size_bytes() + 8 * state.tensors.size() < wire::kMaxMessageBytes / 2,
              operation.name, ": the state of a ", name, " is larger than one message to the executor");
  wire::Writer body;
  body.text(name);
  body.text(implementation);
  body.bytes(state.items.as_bytes());
  for (const auto& tensor : state.tensors) body.word(name_of(tensor));
  const auto hold = client.lock();
  drop_unwanted(client);
  wire::Object head{};
  head.number = next_++;
  head.class_bytes = static_cast<std::uint16_t>(name.size());
  head.implementation_bytes = static_cast<std::uint16_t>(implementation.size());
  head.state_bytes = static_cast<std::uint32_t>(state.items.size_bytes());
  head.slots = static_cast<std::uint32_t>(state.tensors.size());
  client.send(wire::Kind::kObject, std::as_bytes(std::span(&head, 1)), body.as_bytes());
  sent_.insert_or_assign(holder.get(), Sent{head.number, c10::weak_intrusive_ptr<torch::CustomClassHolder>(holder)});
  return head.number;
}

}  // namespace rouse::redirect
