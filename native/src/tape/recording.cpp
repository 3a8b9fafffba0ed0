#include "rouse/tape/recording.h"

#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <utility>

namespace rouse::tape {
namespace {

std::uint8_t default_dtype() { return static_cast<std::uint8_t>(c10::get_default_dtype_as_scalartype()); }

}  // namespace

Recording::Recording(Origin origin, std::span<const std::uint64_t> inputs) {
  tape_.origin = std::move(origin);
  if (inputs.size() > kMaxInputs) {
    refuse("it has " + std::to_string(inputs.size()) + " inputs, at most " + std::to_string(kMaxInputs) + " are taped");
    return;
  }
  tape_.inputs = static_cast<std::uint32_t>(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] >= wire::kModelBase) refuse("an input of it is one of the model's weights");
    if (!places_.emplace(inputs[i], static_cast<std::uint32_t>(i)).second) refuse("two of its inputs share a storage");
    tape_.places.push_back({Class::kInput, false, i, 0});
  }
}

void Recording::refuse(std::string why) {
  if (refused_.empty()) refused_ = std::move(why);
}

std::uint32_t Recording::place(std::uint64_t name) {
  const auto next = static_cast<std::uint32_t>(tape_.places.size());
  const auto [found, fresh] = places_.emplace(name, next);
  if (!fresh) return found->second;
  if (next >= kMaxPlaces) refuse("it uses more than " + std::to_string(kMaxPlaces) + " storages");
  const Origin& origin = tape_.origin;
  if (name < wire::kModelBase)
    tape_.places.push_back({Class::kHeld, false, name, 0});
  else if (name >= origin.model_base && name - origin.model_base < origin.model_bytes)
    tape_.places.push_back({Class::kWeight, false, name - origin.model_base, 0});
  else
    tape_.places.push_back({Class::kHeld, false, name, 0});
  return next;
}

std::uint32_t Recording::make(std::uint64_t name) {
  places_.erase(name);  // a name freed and used again is another storage
  const auto made = place(name);
  tape_.places[made] = {};
  return made;
}

void Recording::change(std::uint32_t place) {
  if (tape_.places[place].kind == Class::kWeight) return refuse("it changes a weight of the model");
  tape_.places[place].written = true;
  if (tape_.places[place].kind != Class::kScratch) changed_ = true;
}

void Recording::guard(const char* what) {
  if (changed_)
    refuse(std::string(what) + " after it had changed an input or a state: a guard there could not be taken back");
}

std::uint32_t Recording::blob(std::span<const std::byte> data) {
  blob_bytes_ += data.size();
  if (blob_bytes_ > kMaxBlobBytes) {
    refuse("it writes more than " + std::to_string(kMaxBlobBytes) + " bytes to the device that are not its inputs");
    return 0;
  }
  tape_.blobs.emplace_back(data.begin(), data.end());
  return static_cast<std::uint32_t>(tape_.blobs.size() - 1);
}

Instruction& Recording::add(Op op, std::span<const std::uint32_t> operands) {
  if (tape_.instructions.size() >= kMaxInstructions || tape_.operands.size() + operands.size() > kMaxOperands)
    refuse("it has more than " + std::to_string(kMaxInstructions) + " operations");
  Instruction instruction;
  instruction.op = op;
  instruction.first = static_cast<std::uint32_t>(tape_.operands.size());
  tape_.operands.insert(tape_.operands.end(), operands.begin(), operands.end());
  return tape_.instructions.emplace_back(instruction);
}

void Recording::create(std::uint64_t name, std::uint64_t bytes) {
  // Binding an address of the model is no allocation: the weight is named where it is used.
  if (!refused_.empty() || name >= wire::kModelBase) return;
  const std::uint32_t made = make(name);
  tape_.places[made].bytes = bytes;
  add(Op::kCreate, {&made, 1}).count = bytes;
}

void Recording::resize(std::uint64_t name, std::uint64_t bytes) {
  if (!refused_.empty()) return;
  const std::uint32_t which = place(name);
  if (tape_.places[which].kind != Class::kScratch) return refuse("it resizes a storage that it did not make");
  change(which);
  add(Op::kResize, {&which, 1}).count = bytes;
}

void Recording::free(std::span<const std::uint64_t> names) {
  for (const auto name : names) places_.erase(name);
}

void Recording::write(std::uint64_t name, std::uint64_t offset, std::span<const std::byte> data) {
  if (!refused_.empty()) return;
  const std::uint32_t which = place(name);
  Place& place = tape_.places[which];
  place.bytes = std::max<std::uint64_t>(place.bytes, offset + data.size());
  change(which);
  const auto number = blob(data);
  Instruction& instruction = add(Op::kWrite, {&which, 1});
  instruction.offset = offset;
  instruction.number = number;
}

void Recording::read(std::uint64_t name, std::uint64_t offset, std::span<const std::byte> data) {
  if (!refused_.empty()) return;
  guard("it read a value back");
  if (data.size() > kMaxGuardBytes)
    return refuse("it read " + std::to_string(data.size()) + " bytes back inside the request; branches on at most " +
                  std::to_string(kMaxGuardBytes) + " are guarded");
  const std::uint32_t which = place(name);
  Place& place = tape_.places[which];
  place.bytes = std::max<std::uint64_t>(place.bytes, offset + data.size());
  const auto number = blob(data);
  Instruction& instruction = add(Op::kGuard, {&which, 1});
  instruction.offset = offset;
  instruction.number = number;
}

void Recording::call(const std::shared_ptr<executor::Operation>& operation, std::span<const std::uint64_t> slots,
                     std::span<const std::uint64_t> results, bool learned) {
  if (!refused_.empty()) return;
  if (awaits_value_) return refuse("what a call returned to Python is not known");
  const bool only_values = operation->has_values() && results.empty();
  // Not data_dependent(): that tag is the operator's, as of `index`, whose shape depends on data only with a mask.
  if (learned && !only_values) return refuse("the shape of what " + operation->name() + " returns depends on data");
  if (operation->draws_random() && !seeded_)
    return refuse(operation->name() + " drew random numbers of a seed that was not set inside the request");
  if (!operation->objects().empty())
    return refuse(operation->name() + " takes an object, such as packed weights, which no tape's file holds");
  if (tape_.instructions.empty()) tape_.origin.default_dtype = default_dtype();
  if (tape_.origin.default_dtype != default_dtype()) return refuse("it changed PyTorch's default dtype");
  const auto [found, fresh] = numbers_.emplace(operation.get(), static_cast<std::uint32_t>(operations_.size()));
  if (fresh) operations_.push_back(operation);
  if (operations_.size() > kMaxTemplates)
    return refuse("it has more than " + std::to_string(kMaxTemplates) + " templates");
  operands_.clear();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto which = place(slots[i]);
    const executor::Slot& slot = operation->slots()[i];
    Place& place = tape_.places[which];
    if (place.kind != Class::kScratch) place.bytes = std::max(place.bytes, slot.spec.required_bytes);
    // Its quantisation is the session's, and may be another when the tape is played.
    if (slot.spec.quantization && place.kind == Class::kHeld)
      return refuse(operation->name() + " reads a quantised tensor that the session keeps between requests");
    if (slot.written) change(which);
    operands_.push_back(which);
  }
  for (const auto name : results) operands_.push_back(make(name));
  if (operation->results()) {
    std::size_t next = slots.size();
    for (const auto& result : *operation->results())
      if (result.origin == executor::Origin::kNew && next < operands_.size())
        tape_.places[operands_[next++]].bytes = result.storage_bytes;
  }
  Instruction& instruction = add(Op::kCall, operands_);
  instruction.number = found->second;
  instruction.slots = static_cast<std::uint16_t>(slots.size());
  instruction.results = static_cast<std::uint16_t>(results.size());
  awaits_value_ = only_values;
}

void Recording::value(std::span<const std::byte> items) {
  if (!refused_.empty()) return;
  guard("a call returned a value to Python");
  if (!awaits_value_) return refuse("a call returned a value to Python beside its tensors");
  awaits_value_ = false;
  const auto number = blob(items);
  add(Op::kValue, {}).number = number;
}

void Recording::seed(const wire::Seed& seed) {
  if (!refused_.empty()) return;
  if (seed.generator != 0 || static_cast<wire::SeedAction>(seed.action) != wire::SeedAction::kSeed)
    return refuse("it handles the state of random numbers, not only their seed");
  changed_ = true;
  seeded_ = true;
  add(Op::kSeed, {}).offset = seed.value;
}

Result<Recorded> Recording::finish(std::span<const std::uint64_t> names,
                                   std::span<const executor::TensorSpec> outputs) {
  if (names.size() > kMaxOutputs) refuse("it has more than " + std::to_string(kMaxOutputs) + " outputs");
  if (awaits_value_) refuse("what a call returned to Python is not known");
  if (refused_.empty()) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      const executor::TensorSpec& spec = outputs[i];
      const auto which = place(names[i]);
      Place& place = tape_.places[which];
      if (place.kind != Class::kScratch) place.bytes = std::max(place.bytes, spec.required_bytes);
      tape_.outputs.push_back({which,
                               static_cast<std::uint8_t>(spec.dtype),
                               spec.flags,
                               spec.offset,
                               {spec.sizes.begin(), spec.sizes.end()},
                               {spec.strides.begin(), spec.strides.end()}});
    }
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      tape_.templates.push_back(operations_[i]->encode(static_cast<std::uint32_t>(i)));
      if (tape_.templates.back().size() > kMaxTemplateBytes)
        refuse("the arguments of " + operations_[i]->name() + " take more than " + std::to_string(kMaxTemplateBytes) +
               " bytes");
    }
  }
  if (!refused_.empty()) return Status(Code::kRefused, refused_);
  ROUSE_RETURN_IF_ERROR(check(tape_));
  return Recorded{std::move(tape_), std::move(operations_)};
}

}  // namespace rouse::tape
