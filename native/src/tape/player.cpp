#include "rouse/tape/player.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "rouse/tape/guarded.h"
#include "rouse/executor/allocator.h"
#include "rouse/executor/arrival.h"
#include "rouse/executor/lifetime_log.h"
#include "rouse/wire/words.h"

namespace rouse::tape {
namespace {

// A tape whose replays do not allocate as they did before is planned anew so often, then left unplanned.
constexpr int kMostPlans = 3;

// Operators whose tensors have more bytes together are not rehearsed: they compute longer than they prepare.
constexpr std::uint64_t kRehearsedBytes = 512 << 10;

constexpr const char* kWhat = "a replay";

class DefaultDtype {
 public:
  explicit DefaultDtype(std::uint8_t dtype) : before_(c10::get_default_dtype_as_scalartype()) { set(dtype); }
  ~DefaultDtype() { set(static_cast<std::uint8_t>(before_)); }

 private:
  static void set(std::uint8_t dtype) {
    const auto wanted = static_cast<c10::ScalarType>(dtype);
    if (c10::get_default_dtype_as_scalartype() != wanted) c10::set_default_dtype(c10::scalarTypeToTypeMeta(wanted));
  }
  c10::ScalarType before_;
};

}  // namespace

Result<std::unique_ptr<Player>> Player::prepare(Tape tape, const Find& find, const executor::Compute& compute,
                                                std::vector<std::shared_ptr<executor::Operation>> operations) {
  ROUSE_RETURN_IF_ERROR(check(tape));
  const auto dtype = static_cast<c10::ScalarType>(tape.origin.default_dtype);
  if (tape.origin.default_dtype >= static_cast<std::uint8_t>(c10::ScalarType::NumOptions) ||
      !c10::isFloatingType(dtype))
    return Status(Code::kInvalid, "a tape's default dtype is none");
  std::unique_ptr<Player> player(new Player(std::move(tape), compute));
  player->operations_ = std::move(operations);
  for (std::size_t i = player->operations_.size(); i < player->tape_.templates.size(); ++i) {
    auto decoded = executor::Operation::decode(player->tape_.templates[i], compute.device());
    if (!decoded.ok()) return decoded.status();
    player->operations_.push_back(std::move(decoded).value());
  }
  const Status bound = guarded(kWhat, [&] { return player->bind(find); });
  if (!bound.ok()) return bound;
  if (compute.host() && !player->tape_.lifetimes.empty()) {
    // A plan out of a file: worth a try; blocks that do not come as planned go elsewhere.
    auto layout = executor::Layout::make(player->tape_.lifetimes, player->tape_.plan);
    if (!layout.ok()) return layout.status();
    player->layout_ = std::move(layout).value();
    player->stats_.arena_bytes = player->tape_.plan.bytes;
  }
  player->stats_.no_graph = player->why_no_graph();
  return player;
}

Status Player::bind(const Find& find) {
  empty_ = compute_.make_storage(0);
  storages_.assign(tape_.places.size(), c10::Storage());
  inputs_.assign(tape_.inputs, 0);
  for (std::uint32_t i = 0; i < tape_.places.size(); ++i) {
    const Place& place = tape_.places[i];
    if (place.kind == Class::kWeight || place.kind == Class::kHeld) {
      auto found = find(place);
      if (!found.ok()) return found.status();
      if (found.value().nbytes() < place.bytes)
        return Status(Code::kMismatch, "storage " + std::to_string(place.value) + " of a tape has " +
                                           std::to_string(found.value().nbytes()) + " bytes, not " +
                                           std::to_string(place.bytes));
      storages_[i] = std::move(found).value();
      if (place.kind == Class::kHeld) held_.push_back(i);
    } else if (place.kind == Class::kConstant) {
      const auto& blob = tape_.blobs[place.value];
      storages_[i] = compute_.make_storage(blob.size());
      ROUSE_RETURN_IF_ERROR(compute_.write(storages_[i], 0, blob));
    } else {
      passing_.push_back(i);
      if (place.kind == Class::kInput) inputs_[place.value] = i;
    }
  }
  const auto last = last_uses(tape_);
  steps_.resize(tape_.instructions.size());
  for (std::uint32_t i = 0; i < tape_.places.size(); ++i)
    if (last[i] < steps_.size()) steps_[last[i]].ends.push_back(i);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Instruction& instruction = tape_.instructions[i];
    Step& step = steps_[i];
    step.op = instruction.op;
    step.number = instruction.number;
    step.offset = instruction.offset;
    step.count = instruction.count;
    if (instruction.op == Op::kCall)
      ROUSE_RETURN_IF_ERROR(prepare_call(instruction, step));
    else if (instruction.op != Op::kValue && instruction.op != Op::kSeed)
      step.place = tape_.operands[instruction.first];
    if (instruction.op == Op::kWrite && !compute_.host()) {
      // A copy on the device waits for nothing, and a graph holds it.
      const auto& blob = tape_.blobs[instruction.number];
      step.constant = compute_.make_storage(blob.size());
      ROUSE_RETURN_IF_ERROR(compute_.write(step.constant, 0, blob));
    }
  }
  for (const Output& output : tape_.outputs)
    if (output.dtype >= static_cast<std::uint8_t>(c10::ScalarType::NumOptions))
      return Status(Code::kInvalid, "an output of a tape has no dtype");
  return {};
}

Status Player::prepare_call(const Instruction& instruction, Step& step) {
  step.operation = operations_[instruction.number];
  const executor::Operation& operation = *step.operation;
  if (operation.slots().size() != instruction.slots || operation.new_storages() != instruction.results)
    return Status(Code::kInvalid, "a tape calls " + operation.name() + " with another number of tensors than it has");
  const c10::InferenceMode mode;
  for (std::uint32_t k = 0; k < instruction.slots; ++k) {
    const std::uint32_t place = tape_.operands[instruction.first + k];
    const executor::Slot& slot = operation.slots()[k];
    const Place& what = tape_.places[place];
    if (slot.written && !what.written)
      return Status(Code::kInvalid, "a tape's " + operation.name() + " changes a place that is said to be unchanged");
    if (storages_[place] && storages_[place].nbytes() < slot.spec.required_bytes)
      return Status(Code::kInvalid, "a tape's " + operation.name() + " reaches past the end of its argument");
    step.tensors.push_back(executor::make_tensor(storages_[place] ? storages_[place] : empty_, slot.spec));
    if (slot.written)
      step.remakes.emplace_back(k, place);
    else if (!storages_[place])
      step.binds.emplace_back(k, place);
    if (what.kind == Class::kWeight) step.reads.emplace_back(k, tape_.origin.model_base + what.value);
  }
  for (std::uint32_t k = 0; k < instruction.results; ++k)
    step.makes.push_back(tape_.operands[instruction.first + instruction.slots + k]);
  return {};
}

void Player::rehearse(executor::Arena* arena) {
  // Where memory is refused, the replay says so.
  if (arena != nullptr && layout_) {
    const executor::Heap* const heap = executor::UseHeap::heap();
    (void)arena->prepare(*layout_, heap != nullptr ? heap->account() : nullptr).ok();
  }
  const c10::InferenceMode mode;
  const DefaultDtype dtype(tape_.origin.default_dtype);
  executor::Generators generators(compute_.device());
  for (const auto& operation : operations_) {
    std::uint64_t bytes = 0;
    for (const executor::Slot& slot : operation->slots()) bytes += slot.spec.required_bytes;
    // Others' operators may keep a state of their own.
    if (bytes > kRehearsedBytes || !operation->name().starts_with("aten::")) continue;
    // An operator may refuse zeros; its replay then pays for itself.
    (void)guarded(kWhat, [&] {
      std::vector<at::Tensor> tensors;
      for (const executor::Slot& slot : operation->slots()) {
        c10::Storage storage = compute_.make_storage(slot.spec.required_bytes);
        ROUSE_RETURN_IF_ERROR(compute_.zero(storage));
        tensors.push_back(executor::make_tensor(storage, slot.spec));
      }
      operation->push(tensors, generators, stack_);
      return operation->run(stack_, generators);
    }).ok();
    stack_.clear();
  }
}

Status Player::call(Step& step, const Surroundings& with) {
  const Status called = bound_call(step, with);
  returned_.clear();
  if (!called.ok() || !step.operation->has_values()) stack_.clear();
  // The tensors stay; what they showed has to go, or memory would live until the next replay.
  for (const auto& [slot, place] : step.binds) step.tensors[slot].unsafeGetTensorImpl()->set_storage_keep_dtype(empty_);
  for (const auto& [slot, place] : step.remakes) step.tensors[slot] = at::Tensor();
  return called;
}

Status Player::wait_for_place(std::uint32_t place, std::uint64_t offset, std::uint64_t bytes,
                              const Surroundings& with) const {
  const Place& what = tape_.places[place];
  if (what.kind != Class::kWeight || with.residency == nullptr) return {};
  return with.residency->wait_ready(tape_.origin.model_base + what.value + offset, bytes);
}

Status Player::bound_call(Step& step, const Surroundings& with) {
  const executor::Operation& operation = *step.operation;
  for (const auto& [slot, place] : step.binds) {
    const c10::Storage& storage = storages_[place];
    if (!storage || storage.nbytes() < operation.slots()[slot].spec.required_bytes)
      return Status(Code::kInvalid, "a tape's " + operation.name() + " reaches past the end of its argument");
    step.tensors[slot].unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  }
  for (const auto& [slot, place] : step.remakes) {
    const executor::TensorSpec& spec = operation.slots()[slot].spec;
    if (!storages_[place] || storages_[place].nbytes() < spec.required_bytes)
      return Status(Code::kInvalid, "a tape's " + operation.name() + " reaches past the end of its argument");
    step.tensors[slot] = executor::make_tensor(storages_[place], spec);
  }
  if (with.residency != nullptr && !step.reads.empty() && !with.residency->all_ready()) {
    for (const auto& [slot, address] : step.reads)
      ROUSE_RETURN_IF_ERROR(executor::wait_for_slot(*with.residency, operation, slot, address, step.tensors));
  }
  operation.push(step.tensors, with.generators, stack_);
  ROUSE_RETURN_IF_ERROR(operation.run(stack_, with.generators));
  executor::Operation::flatten(stack_, returned_);
  if (operation.results()) {
    ROUSE_RETURN_IF_ERROR(operation.check(step.tensors, returned_));
    std::size_t next = 0;
    const auto& results = *operation.results();
    for (std::size_t i = 0; i < results.size(); ++i)
      if (results[i].origin == executor::Origin::kNew) storages_[step.makes[next++]] = returned_[i].storage();
  }
  return {};
}

Status Player::step(Step& step, const Surroundings& with, bool& missed) {
  switch (step.op) {
    case Op::kCall:
      return call(step, with);
    case Op::kCreate:
      storages_[step.place] = compute_.make_storage(step.count);
      return {};
    case Op::kResize: {
      c10::Storage grown = compute_.make_storage(step.count);
      const c10::Storage& old = storages_[step.place];
      ROUSE_RETURN_IF_ERROR(compute_.copy(grown, old, std::min(old.nbytes(), grown.nbytes())));
      storages_[step.place] = std::move(grown);
      return {};
    }
    case Op::kWrite:
    case Op::kGuard: {
      const auto& blob = tape_.blobs[step.number];
      const c10::Storage& storage = storages_[step.place];
      if (storage.nbytes() < step.offset || storage.nbytes() - step.offset < blob.size())
        return Status(Code::kInvalid, "a tape writes or reads past the end of a storage");
      if (blob.empty()) return {};
      ROUSE_RETURN_IF_ERROR(wait_for_place(step.place, step.offset, blob.size(), with));
      if (step.constant) return compute_.copy(storage, step.constant, blob.size(), step.offset);
      if (step.op == Op::kWrite) return compute_.write(storage, step.offset, blob);
      const auto found = compute_.look(storage, step.offset, blob.size(), read_);
      if (!found.ok()) return found.status();
      missed = std::memcmp(found.value().data(), blob.data(), blob.size()) != 0;
      return {};
    }
    case Op::kValue: {
      wire::Writer items;
      ROUSE_RETURN_IF_ERROR(executor::Operation::describe(stack_, {}, items));
      const auto found = items.as_bytes();
      const auto& blob = tape_.blobs[step.number];
      missed = found.size() != blob.size() || std::memcmp(found.data(), blob.data(), blob.size()) != 0;
      stack_.clear();
      return {};
    }
    case Op::kSeed:
      return with.generators.seed(0, step.offset);
  }
  return {};
}

Result<Replayed> Player::walk(std::span<const c10::Storage> inputs, const Surroundings& with) {
  const c10::InferenceMode mode;
  const DefaultDtype dtype(tape_.origin.default_dtype);
  for (std::size_t i = 0; i < inputs.size(); ++i) storages_[inputs_[i]] = inputs[i];
  Replayed replayed;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    bool missed = false;
    ROUSE_RETURN_IF_ERROR(step(steps_[i], with, missed));
    if (missed) {
      replayed.missed = static_cast<std::uint32_t>(i);
      return replayed;
    }
    for (const auto place : steps_[i].ends) storages_[place] = c10::Storage();
  }
  for (const Output& output : tape_.outputs) {
    ROUSE_RETURN_IF_ERROR(wait_for_place(output.place, 0, tape_.places[output.place].bytes, with));
    replayed.outputs.push_back(storages_[output.place]);
  }
  return replayed;
}

void Player::forget() {
  for (const auto place : passing_) storages_[place] = c10::Storage();
  stack_.clear();
  returned_.clear();
}

Result<Replayed> Player::run(std::span<const c10::Storage> inputs, const Surroundings& with) {
  if (inputs.size() != tape_.inputs)
    return Status(Code::kInvalid,
                  "a tape of " + std::to_string(tape_.inputs) + " inputs was given " + std::to_string(inputs.size()));
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (!inputs[i] || inputs[i].nbytes() < tape_.places[inputs_[i]].bytes)
      return Status(Code::kInvalid, "input " + std::to_string(i) + " is smaller than the one that was taped");
  if (may_be_graph(inputs, with)) {
    if (!captured_) ROUSE_RETURN_IF_ERROR(capture(inputs, with));
    if (captured_) return replay_graph(inputs);
  }
  executor::Heap* heap = executor::UseHeap::heap();
  std::optional<Replayed> replayed;
  Status status;
  auto walk_it = [&] {
    auto walked = walk(inputs, with);
    if (walked.ok()) replayed = std::move(walked).value();
    forget();
    return walked.status();
  };
  if (heap == nullptr || with.arena == nullptr || !compute_.host()) {
    status = guarded(kWhat, walk_it);
  } else if (layout_ && with.arena->begin(*layout_, heap->account()).ok()) {
    const executor::UseHeap use(*heap, with.arena);
    status = guarded(kWhat, walk_it);
    stats_.planned_blocks += use.planned();
    stats_.unplanned_blocks += use.unplanned();
    // A plan that did not hold is made anew from what the next replay does.
    if (!with.arena->finish() && plans_tried_ <= kMostPlans) layout_.reset();
  } else if (layout_ || plans_tried_ > kMostPlans) {
    status = guarded(kWhat, walk_it);
  } else {
    const auto log = executor::LifetimeLog::make();
    const executor::UseHeap use(*heap, nullptr, log.get());
    status = guarded(kWhat, walk_it);
    if (status.ok() && !replayed->missed) {
      auto lifetimes = log->finish();
      if (lifetimes.ok()) learn_plan(std::move(lifetimes).value());
    }
  }
  if (!status.ok()) {
    forget();  // after an exception, walk_it did not
    return status;
  }
  ++(replayed->missed ? stats_.guards_missed : stats_.replays);
  return *std::move(replayed);
}

void Player::learn_plan(std::vector<Lifetime> lifetimes) {
  ++plans_tried_;
  auto plan = executor::plan_of(lifetimes);
  if (!plan.ok()) return;
  auto layout = executor::Layout::make(lifetimes, plan.value());
  if (!layout.ok()) return;
  layout_ = std::move(layout).value();
  std::vector<Lifetime> planned;
  stats_.all_bytes = 0;
  for (const Lifetime& life : lifetimes) {
    if (life.until == executor::LifetimeLog::kNeverFreed) continue;
    planned.push_back({executor::arena_bytes(life.bytes), life.from, life.until});
    stats_.all_bytes += executor::arena_bytes(life.bytes);
  }
  stats_.arena_bytes = plan.value().bytes;
  stats_.least_bytes = most_live(planned);
  tape_.lifetimes = std::move(lifetimes);
  tape_.plan = std::move(plan).value();
}

}  // namespace rouse::tape
