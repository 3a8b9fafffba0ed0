// The engine's front, and the messages that carry state and data. engine_calls.cpp has operators and requests.
#include "rouse/executor/engine.h"

#include <c10/core/DefaultDtype.h>

#include <algorithm>

#include "rouse/wire/words.h"
#include "state.h"

namespace rouse::executor {
namespace {

Status malformed(const char* what) {
  return {Code::kInvalid, std::string("message ") + what + ": its length does not fit its kind"};
}

template <typename T>
bool exactly(std::span<const std::byte> message, T& value) {
  wire::Reader reader(message);
  return reader.head(value) && reader.left() == 0;
}

}  // namespace

Engine::Engine(EngineOptions options) : state_(std::make_unique<State>(options)) {}
Engine::~Engine() = default;

Status Engine::add_range(const Range& range) { return state_->storages.add_range(range); }
void Engine::remove_range(std::uint64_t base) { state_->storages.remove_range(base); }

Result<c10::Storage> Engine::storage(std::uint64_t name) const {
  const auto* entry = state_->storages.find(name);
  if (!entry || entry->state != Storages::State::kLive) {
    return Status(Code::kNotFound, "storage " + std::to_string(name) + " is not there");
  }
  return entry->storage;
}

Status Engine::put(std::uint64_t name, c10::Storage storage) { return state_->storages.put(name, std::move(storage)); }

std::shared_ptr<Operation> Engine::operation(std::uint32_t number) const {
  return number < state_->templates.size() ? state_->templates[number] : nullptr;
}

Generators& Engine::generators() { return state_->generators; }
void Engine::settle() { state_->settle(); }
const Compute& Engine::compute() const { return state_->options.compute; }
std::uint64_t Engine::bytes() const { return state_->storages.bytes(); }
std::uint64_t Engine::most_bytes() const { return state_->storages.most_bytes(); }
const Status& Engine::sticky() const { return state_->sticky; }

Status Engine::handle(std::span<const std::byte> message, Responder& responder) {
  try {
    return state_->dispatch(*this, message, responder);
  } catch (const std::exception& error) {
    // Operators' own exceptions are caught where they run: this is a session that broke an assumption, not a process
    // that should end.
    return {Code::kFailed, std::string("message that could not be handled: ") + error.what()};
  }
}

Status Engine::State::dispatch(Engine& engine, std::span<const std::byte> message, Responder& responder) {
  wire::Header header{};
  if (!wire::Reader(message).head(header) || header.size != message.size() || message.size() % 8 != 0) {
    return malformed("of unknown kind");
  }
  ++sequence;
  switch (static_cast<wire::Kind>(header.kind)) {
    case wire::Kind::kCall:
      return on_call(message, responder);
    case wire::Kind::kFree:
      return on_free(message);
    case wire::Kind::kCreate:
      return on_create(message);
    case wire::Kind::kWrite:
      return on_write(message);
    case wire::Kind::kRead:
      return on_read(message, responder);
    case wire::Kind::kSync:
      return on_sync(message, responder);
    case wire::Kind::kTemplate:
      return on_template(message);
    case wire::Kind::kDropTemplate:
      return on_drop_template(message);
    case wire::Kind::kResize:
      return on_resize(message);
    case wire::Kind::kSeed:
      return on_seed(message, responder);
    case wire::Kind::kSetting:
      return on_setting(message);
    case wire::Kind::kObject:
      return on_object(message);
    case wire::Kind::kDropObject:
      return on_drop_object(message);
    case wire::Kind::kBegin:
      return on_begin(message);
    case wire::Kind::kEnd:
      return on_end(message);
    case wire::Kind::kReplay:
      return on_replay(engine, message, responder);
    default:
      return {Code::kInvalid, "message of kind " + std::to_string(header.kind) + ": there is no such kind"};
  }
}

void Engine::State::fail(Status error, const std::string& operation, std::uint32_t number) {
  if (!sticky.ok()) return;
  sticky = std::move(error);
  failed_operator = operation;
  failed_template = number;
  failed_sequence = sequence;
  if (options.observer) options.observer->on_error(sticky);
}

void Engine::State::settle() {
  if (!busy) return;
  if (const Status done = options.compute.synchronize(); !done.ok()) fail_late(done);
  synchronised();
}

void Engine::State::synchronised() {
  busy = false;
  unsynchronised = 0;
  latest = nullptr;
}

void Engine::State::fail_late(const Status& error) {
  if (unsynchronised == 0) return fail(error, "", 0);
  const std::string which =
      unsynchronised == 1 ? "in " + latest->name()
                          : "in one of the last " + std::to_string(unsynchronised) +
                                " operators, of which the latest was " + latest->name();
  fail({error.code(), error.text() + "; it happened on the device " + which}, unsynchronised == 1 ? latest->name() : "",
       0);
}

Status Engine::State::send_error(Responder& responder) {
  wire::Error head{};
  const std::string text = sticky.text().substr(0, 8192);
  head.header.kind = static_cast<std::uint16_t>(wire::Kind::kError);
  head.header.size =
      static_cast<std::uint32_t>(sizeof(head) + wire::padded(failed_operator.size()) + wire::padded(text.size()));
  head.code = static_cast<std::uint32_t>(sticky.code());
  head.operator_bytes = static_cast<std::uint32_t>(failed_operator.size());
  head.text_bytes = static_cast<std::uint32_t>(text.size());
  head.template_number = failed_template;
  head.sequence = failed_sequence;
  wire::Writer body;
  body.text(failed_operator);
  body.text(text);
  sticky = Status();
  failed_operator.clear();
  return responder.send(std::as_bytes(std::span(&head, 1)), body.as_bytes());
}

Status Engine::State::send_data(std::uint64_t name, std::uint64_t offset, std::span<const std::byte> data,
                                Responder& responder) {
  wire::Data head{};
  head.header.kind = static_cast<std::uint16_t>(wire::Kind::kData);
  head.header.size = static_cast<std::uint32_t>(sizeof(head) + wire::padded(data.size()));
  head.name = name;
  head.offset = offset;
  head.count = data.size();
  return responder.send(std::as_bytes(std::span(&head, 1)), data);
}

Status Engine::State::on_template(std::span<const std::byte> message) {
  wire::Template head;
  if (!wire::Reader(message).head(head)) return malformed("TEMPLATE");
  if (head.number >= wire::kMaxTemplates) {
    return {Code::kInvalid, "template " + std::to_string(head.number) + ": no such number is allowed"};
  }
  if (head.number >= templates.size()) {
    templates.resize(
        std::max<std::size_t>(head.number + 1, std::min<std::size_t>(2 * templates.size(), wire::kMaxTemplates)));
  }
  broken.erase(head.number);
  templates[head.number] = nullptr;
  auto decoded = Operation::decode(message, options.compute.device(), &objects);
  if (decoded.ok()) {
    templates[head.number] = std::move(decoded).value();
    return {};
  }
  if (decoded.status().code() != Code::kUnsupported) return decoded.status();
  broken[head.number] = decoded.status();
  return {};
}

Status Engine::State::on_drop_template(std::span<const std::byte> message) {
  wire::DropTemplate head;
  if (!exactly(message, head)) return malformed("DROP_TEMPLATE");
  if (head.number == wire::kAllTemplates) {
    templates.clear();
    broken.clear();
  } else if (head.number < templates.size()) {
    templates[head.number] = nullptr;
    broken.erase(head.number);
  }
  return {};
}

Status Engine::State::on_create(std::span<const std::byte> message) {
  wire::Create head;
  if (!exactly(message, head)) return malformed("CREATE");
  // It is of what comes after an error, and so is what would be written to it: skipped, and not to be read either.
  if (!sticky.ok() && head.name < wire::kModelBase) return storages.poison(head.name);
  auto made = storages.create(head.name, head.bytes);
  if (made.code() == Code::kExhausted) {
    fail(made, "", 0);
    return {};
  }
  if (made.ok() && options.observer) options.observer->on_create(head.name, head.bytes);
  return made;
}

Status Engine::State::on_resize(std::span<const std::byte> message) {
  wire::Create head;
  if (!exactly(message, head)) return malformed("RESIZE");
  auto made = storages.resize(head.name, head.bytes);
  if (made.code() == Code::kExhausted || made.code() == Code::kFailed) {
    fail(made, "", 0);
    return {};
  }
  if (made.ok() && options.observer) options.observer->on_resize(head.name, head.bytes);
  return made;
}

Status Engine::State::on_free(std::span<const std::byte> message) {
  names.resize(message.size() / 8 - 1);
  wire::Header header;
  wire::Reader reader(message);
  if (!reader.head(header) || !reader.words(names.size(), std::span(names))) return malformed("FREE");
  for (const auto name : names) {
    if (!storages.free(name))
      return {Code::kInvalid, "FREE of storage " + std::to_string(name) + ", which is not there"};
  }
  if (options.observer) options.observer->on_free(names);
  return {};
}

Status Engine::State::on_write(std::span<const std::byte> message) {
  wire::Span head;
  wire::Reader reader(message);
  std::span<const std::byte> data;
  if (!reader.head(head) || head.count > wire::kMaxDataBytes || !reader.bytes(head.count, data) || reader.left() != 0) {
    return malformed("WRITE");
  }
  const auto* entry = storages.find(head.name);
  if (!entry) return {Code::kInvalid, "WRITE to storage " + std::to_string(head.name) + ", which is not there"};
  if (entry->state == Storages::State::kPoisoned || !sticky.ok()) return {};
  const std::uint64_t bytes = entry->storage.nbytes();
  if (head.offset > bytes || data.size() > bytes - head.offset) {
    return {Code::kInvalid, "WRITE past the end of storage " + std::to_string(head.name)};
  }
  if (!entry->writable) {
    fail(read_only(head.name), "aten::copy_", 0);
    return {};
  }
  if (const Status written = options.compute.write(entry->storage, head.offset, data); !written.ok()) {
    fail_late(written);
    return {};
  }
  if (options.observer) options.observer->on_write(head.name, head.offset, data);
  return {};
}

Status Engine::State::on_read(std::span<const std::byte> message, Responder& responder) {
  wire::Span head;
  if (!exactly(message, head) || head.count > wire::kMaxDataBytes) return malformed("READ");
  const auto* entry = storages.find(head.name);
  if (!entry) return {Code::kInvalid, "READ of storage " + std::to_string(head.name) + ", which is not there"};
  if (sticky.ok() && entry->state == Storages::State::kPoisoned) {
    fail({Code::kFailed, "RuntimeError: this tensor's operator failed before"}, "", 0);
  }
  if (!sticky.ok()) return send_error(responder);
  const std::uint64_t bytes = entry->storage.nbytes();
  if (head.offset > bytes || head.count > bytes - head.offset) {
    return {Code::kInvalid, "READ past the end of storage " + std::to_string(head.name)};
  }
  if (options.residency && head.name >= wire::kModelBase) {
    if (const Status there = options.residency->wait_ready(head.name + head.offset, head.count); !there.ok()) {
      fail(there, "", 0);
      return send_error(responder);
    }
  }
  const auto data = options.compute.look(entry->storage, head.offset, head.count, read_bytes);
  if (!data.ok()) {
    fail_late(data.status());
    synchronised();
    return send_error(responder);
  }
  if (busy) synchronised();
  if (options.observer) options.observer->on_read(head.name, head.offset, data.value());
  return send_data(head.name, head.offset, data.value(), responder);
}

Status Engine::State::on_sync(std::span<const std::byte> message, Responder& responder) {
  wire::Sync head;
  if (!exactly(message, head)) return malformed("SYNC");
  settle();
  if (!sticky.ok()) return send_error(responder);
  head.header.kind = static_cast<std::uint16_t>(wire::Kind::kDone);
  return responder.send(std::as_bytes(std::span(&head, 1)), {});
}

Status Engine::State::on_seed(std::span<const std::byte> message, Responder& responder) {
  wire::Seed head;
  wire::Reader reader(message);
  if (!reader.head(head) || head.generator >= wire::kMaxGenerators) return malformed("SEED");
  if (options.observer) options.observer->on_seed(head);
  switch (static_cast<wire::SeedAction>(head.action)) {
    case wire::SeedAction::kSeed:
      return generators.seed(head.generator, head.value);
    case wire::SeedAction::kState: {
      std::span<const std::byte> state;
      if (head.value > wire::kMaxDataBytes || !reader.bytes(head.value, state)) return malformed("SEED");
      return generators.set_state(head.generator, state);
    }
    case wire::SeedAction::kReadState:
      if (!sticky.ok()) return send_error(responder);
      return send_data(head.generator, 0, generators.state(head.generator), responder);
    case wire::SeedAction::kDrop:
      generators.drop(head.generator);
      return {};
  }
  return malformed("SEED");
}

Status Engine::State::on_setting(std::span<const std::byte> message) {
  wire::Setting head;
  if (!exactly(message, head)) return malformed("SETTING");
  if (static_cast<wire::SettingKey>(head.key) != wire::SettingKey::kDefaultDtype) {
    return {Code::kInvalid, "SETTING " + std::to_string(head.key) + ": there is no such setting"};
  }
  const auto dtype = static_cast<c10::ScalarType>(head.value & 0xff);
  if (head.value >= static_cast<std::uint64_t>(c10::ScalarType::NumOptions) || !c10::isFloatingType(dtype)) {
    return {Code::kInvalid, "SETTING of the default dtype: not a floating-point dtype"};
  }
  default_dtype = dtype;
  return {};
}

}  // namespace rouse::executor
