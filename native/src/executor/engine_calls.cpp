// The messages that run operators, and those that bound requests.
#include <c10/core/DefaultDtype.h>

#include <algorithm>

#include "rouse/base/text.h"
#include "rouse/executor/arrival.h"
#include "rouse/wire/words.h"
#include "specs.h"
#include "state.h"

namespace rouse::executor {

Status Engine::State::poison(std::span<const std::uint64_t> results) {
  for (const auto name : results) ROUSE_RETURN_IF_ERROR(storages.poison(name));
  return {};
}

Status Engine::State::within_limit(const Operation& operation, std::span<const std::uint64_t> slots) {
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (operation.slots()[i].written) storages.recount(slots[i]);
  std::uint64_t made = 0;
  for (std::size_t i = 0; i < returned.size(); ++i) {
    if (!returned[i].defined() || !returned[i].has_storage()) continue;
    const auto has_its_storage = [&](const at::Tensor& other) {
      return other.defined() && other.has_storage() &&
             other.storage().unsafeGetStorageImpl() == returned[i].storage().unsafeGetStorageImpl();
    };
    if (std::none_of(tensors.begin(), tensors.end(), has_its_storage) &&
        std::none_of(returned.begin(), returned.begin() + static_cast<long>(i), has_its_storage))
      made += returned[i].storage().nbytes();
  }
  return storages.room(made);
}

// The slots' tensors, into `tensors`. `skip`: the call fails, as an operator that made one of them did, as it changes
// what may only be read, or as weights that it reads do not arrive.
Status Engine::State::gather(const Operation& operation, std::uint32_t number, std::span<const std::uint64_t> slots,
                             bool& skip) {
  tensors.clear();
  const bool waits = options.residency != nullptr && !options.residency->all_ready();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto* entry = storages.find(slots[i]);
    const Slot& slot = operation.slots()[i];
    if (!entry) {
      return {Code::kInvalid,
              "CALL of " + operation.name() + " with storage " + std::to_string(slots[i]) + ", which is not there"};
    }
    if (entry->state == Storages::State::kPoisoned) {
      skip = true;
      return {};
    }
    if (entry->storage.nbytes() < slot.spec.required_bytes) {
      return {Code::kInvalid, "CALL of " + operation.name() + ": argument tensor " + std::to_string(i) + " needs " +
                                  std::to_string(slot.spec.required_bytes) + " bytes, storage " +
                                  std::to_string(slots[i]) + " has " + std::to_string(entry->storage.nbytes())};
    }
    if (slot.written && !entry->writable) {
      fail(read_only(slots[i]), operation.name(), number);
      skip = true;
      return {};
    }
    tensors.push_back(make_tensor(entry->storage, slot.spec));
  }
  for (std::uint32_t i = 0; waits && i < slots.size(); ++i) {
    if (slots[i] < wire::kModelBase) continue;
    const Status arrived = wait_for_slot(*options.residency, operation, i, slots[i], tensors);
    if (arrived.ok()) continue;
    fail(arrived, operation.name(), number);
    skip = true;
    return {};
  }
  return {};
}

Status Engine::State::read_only(std::uint64_t address) {
  return {Code::kRefused, text("it would change a weight of the model, at ", Hex{address},
                               ", which may only be read: all sessions and tapes of the version share it; change a "
                               "copy, as of tensor.clone()")};
}

Status Engine::State::arrived(std::span<const std::uint64_t> storage_names) {
  if (options.residency == nullptr || options.residency->all_ready()) return {};
  for (const auto name : storage_names) {
    const auto* entry = name >= wire::kModelBase ? storages.find(name) : nullptr;
    if (entry) ROUSE_RETURN_IF_ERROR(options.residency->wait_ready(name, entry->storage.nbytes()));
  }
  return {};
}

Status Engine::State::on_call(std::span<const std::byte> message, Responder& responder) {
  wire::Call head;
  wire::Reader reader(message);
  if (!reader.head(head) || reader.left() != 8u * (std::size_t{head.slots} + head.results)) {
    return {Code::kInvalid, "message CALL: its length does not fit its counts"};
  }
  names.resize(std::size_t{head.slots} + head.results);
  (void)reader.words(names.size(), std::span(names));
  const std::span<const std::uint64_t> slots(names.data(), head.slots);
  const std::span<const std::uint64_t> results(names.data() + head.slots, head.results);
  const bool learning = (head.header.flags & wire::kCallLearn) != 0;
  const auto number = head.template_number;
  std::shared_ptr<Operation> operation = number < templates.size() ? templates[number] : nullptr;
  if (!operation) {
    const auto found = broken.find(number);
    if (found == broken.end()) {
      return {Code::kInvalid, "CALL of template " + std::to_string(number) + ", which is not there"};
    }
    fail(found->second, "", number);
  } else if (operation->slots().size() != slots.size() ||
             (learning ? results.size() != 1 : !operation->results() || operation->new_storages() != results.size())) {
    return {Code::kInvalid, "CALL of " + operation->name() + ": its names are not as many as its template has"};
  }
  bool skip = !sticky.ok();
  if (!skip) ROUSE_RETURN_IF_ERROR(gather(*operation, number, slots, skip));
  if (!skip) {
    if (c10::get_default_dtype_as_scalartype() != default_dtype) {
      c10::set_default_dtype(c10::scalarTypeToTypeMeta(default_dtype));
    }
    operation->push(tensors, generators, stack);
    auto ran = operation->run(stack, generators);
    Operation::flatten(stack, returned);
    if (!options.compute.host()) {
      busy = true;
      ++unsynchronised;
      latest = operation;
      if (ran.ok()) ran = within_limit(*operation, slots);
    }
    if (ran.ok() && !learning) ran = operation->check(tensors, returned);
    if (ran.ok()) {
      auto done = finish(number, operation, slots, results, head.header.flags, responder);
      stack.clear();
      tensors.clear();
      returned.clear();
      return done;
    }
    fail(ran, operation->name(), number);
    stack.clear();
    tensors.clear();
    returned.clear();
  } else if (sticky.ok()) {
    fail({Code::kFailed, "RuntimeError: one of its arguments was to be made by an operator that failed"},
         operation->name(), number);
  }
  if (learning) return send_error(responder);
  return poison(results);
}

Status Engine::State::finish(std::uint32_t number, const std::shared_ptr<Operation>& operation,
                             std::span<const std::uint64_t> slots, std::span<const std::uint64_t> results,
                             std::uint16_t flags, Responder& responder) {
  if (flags & wire::kCallLearn) {
    return learn(number, operation, slots, results[0], (flags & wire::kCallKeep) != 0, responder);
  }
  std::size_t next = 0;
  const auto& specs = *operation->results();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].origin == Origin::kNew) ROUSE_RETURN_IF_ERROR(storages.put(results[next++], returned[i].storage()));
  }
  if (options.observer) options.observer->on_call(number, operation, slots, results, false);
  return {};
}

Status Engine::State::learn(std::uint32_t number, const std::shared_ptr<Operation>& operation,
                            std::span<const std::uint64_t> slots, std::uint64_t first, bool keep,
                            Responder& responder) {
  auto observed = operation->observe(tensors, returned);
  wire::Writer items;
  Status status = observed.ok() ? Operation::describe(stack, observed.value(), items) : observed.status();
  if (status.ok() && items.size_bytes() > wire::kMaxMessageBytes - sizeof(wire::Meta)) {
    status = {Code::kUnsupported, operation->name() + " returns more tensors than one message describes"};
  }
  if (!status.ok()) {
    fail(status, operation->name(), number);
    return send_error(responder);
  }
  std::vector<std::uint64_t> results;
  for (std::size_t i = 0; i < returned.size(); ++i) {
    if (observed.value()[i].origin != Origin::kNew) continue;
    results.push_back(first + results.size());
    ROUSE_RETURN_IF_ERROR(storages.put(results.back(), returned[i].storage()));
  }
  if (options.observer) {
    if (keep) operation->keep(observed.value());
    options.observer->on_call(number, operation, slots, results, !keep);
    if (operation->has_values()) options.observer->on_value(operation, items.as_bytes());
  } else if (keep) {
    operation->keep(std::move(observed).value());
  }
  wire::Meta head{};
  head.header.kind = static_cast<std::uint16_t>(wire::Kind::kMeta);
  head.header.size = static_cast<std::uint32_t>(sizeof(head) + items.size_bytes());
  head.made = static_cast<std::uint32_t>(results.size());
  head.result_bytes = static_cast<std::uint32_t>(items.size_bytes());
  return responder.send(std::as_bytes(std::span(&head, 1)), items.as_bytes());
}

Status Engine::State::on_begin(std::span<const std::byte> message) {
  wire::Begin head;
  wire::Reader reader(message);
  if (!reader.head(head) || reader.left() != 8u * std::size_t{head.inputs}) {
    return {Code::kInvalid, "message BEGIN: its length does not fit its counts"};
  }
  names.resize(head.inputs);
  (void)reader.words(names.size(), std::span(names));
  for (const auto name : names) {
    if (!storages.find(name)) return {Code::kInvalid, "BEGIN with an input that is not there"};
  }
  if (const Status there = arrived(names); !there.ok()) fail(there, "", 0);
  if (options.observer) options.observer->on_begin(head, names);
  return {};
}

Status Engine::State::on_end(std::span<const std::byte> message) {
  wire::End head;
  wire::Reader reader(message);
  if (!reader.head(head) || head.outputs > wire::kMaxSlots) return {Code::kInvalid, "message END: malformed"};
  std::vector<std::uint64_t> outputs(head.outputs);
  std::vector<TensorSpec> specs(head.outputs);
  for (std::uint32_t i = 0; i < head.outputs; ++i) {
    wire::Item item;
    if (!reader.word(outputs[i]) || !reader.item(item) || item.tag != wire::Tag::kTensor ||
        !read_spec(reader, item, options.compute.device(), specs[i]) || specs[i].quantization) {
      return {Code::kInvalid, "message END: an output is malformed"};
    }
    const auto* entry = storages.find(outputs[i]);
    if (!entry) return {Code::kInvalid, "END with an output that is not there"};
    if (entry->state == Storages::State::kLive && entry->storage.nbytes() < specs[i].required_bytes) {
      return {Code::kInvalid, "END with an output that reaches past its storage"};
    }
  }
  if (reader.left() != 0) return {Code::kInvalid, "message END: its length does not fit its counts"};
  if (const Status there = arrived(outputs); !there.ok()) fail(there, "", 0);
  if (options.observer) options.observer->on_end(head.request, outputs, specs);
  return {};
}

Status Engine::State::on_replay(Engine& engine, std::span<const std::byte> message, Responder& responder) {
  wire::Replay head;
  wire::Reader reader(message);
  if (!reader.head(head) || reader.left() != 8u * (std::size_t{head.inputs} + head.outputs)) {
    return {Code::kInvalid, "message REPLAY: its length does not fit its counts"};
  }
  std::vector<std::uint64_t> given(std::size_t{head.inputs} + head.outputs);
  (void)reader.words(given.size(), std::span(given));
  std::vector<std::byte> answer;
  if (const Status there = arrived(std::span(given).first(head.inputs)); !there.ok()) fail(there, "", 0);
  if (sticky.ok()) {
    busy = !options.compute.host();
    const std::span<const std::uint64_t> all(given);
    auto replayed = options.observer ? options.observer->on_replay(engine, head.tape, all.first(head.inputs),
                                                                   all.subspan(head.inputs), answer)
                                     : Status(Code::kNotFound, "this session keeps no tapes");
    if (!replayed.ok()) fail(replayed, "", 0);
  }
  if (!sticky.ok()) return send_error(responder);
  wire::Header header{static_cast<std::uint32_t>(sizeof(header) + wire::padded(answer.size())),
                      static_cast<std::uint16_t>(wire::Kind::kReplayed), 0};
  return responder.send(std::as_bytes(std::span(&header, 1)), answer);
}

}  // namespace rouse::executor
