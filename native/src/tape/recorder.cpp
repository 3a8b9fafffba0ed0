#include "rouse/tape/recorder.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "entry.h"
#include "rouse/wire/words.h"

namespace rouse::tape {
namespace {

// Equal but for plans, which are no part of what a request does.
bool same_stream(const Tape& a, const Tape& b) {
  return a.origin == b.origin && a.templates == b.templates && a.places == b.places &&
         a.instructions == b.instructions && a.operands == b.operands && a.blobs == b.blobs && a.outputs == b.outputs &&
         a.inputs == b.inputs;
}

// Where two requests of one signature went apart, for people.
std::string difference(const Tape& a, const Tape& b, const std::vector<std::shared_ptr<executor::Operation>>& names) {
  const std::size_t common = std::min(a.instructions.size(), b.instructions.size());
  for (std::size_t i = 0; i < common; ++i) {
    const Instruction &x = a.instructions[i], &y = b.instructions[i];
    const std::string where = "operation " + std::to_string(i);
    if (x.op == Op::kCall && y.op == Op::kCall && a.templates[x.number] != b.templates[y.number])
      return where + " was another one, now " + names[y.number]->name();
    if (!(x == y)) return where + " was another one";
    if (x.op == Op::kWrite && a.blobs[x.number] != b.blobs[y.number]) return where + " writes another constant";
    if (x.op == Op::kGuard && a.blobs[x.number] != b.blobs[y.number]) return where + " reads another value back";
  }
  if (a.instructions.size() != b.instructions.size())
    return "there were " + std::to_string(a.instructions.size()) + " operations, now " +
           std::to_string(b.instructions.size());
  if (a.places != b.places) return "it uses other storages that live between requests";
  return "it differs in its outputs";
}

// The bits of a tensor in the order of its elements, where this process may read them.
at::Tensor on_host(const at::Tensor& tensor) { return tensor.contiguous().to(c10::kCPU); }

void write_outputs(const Tape& tape, wire::Writer& out) {
  for (const Output& output : tape.outputs) {
    out.item(wire::Tag::kTensor, 0, output.dtype, output.flags, static_cast<std::uint8_t>(output.sizes.size()));
    out.word(static_cast<std::uint64_t>(output.offset));
    out.words(output.sizes);
    out.words(output.strides);
  }
}

}  // namespace

Recorder::Recorder(RecorderOptions options)
    : options_(std::move(options)), candidates_(options_.candidates), arena_(executor::Arena::make()) {}
Recorder::~Recorder() = default;

Surroundings Recorder::surroundings() { return {engine_->generators(), options_.residency, arena_.get()}; }

Recorder::Entry* Recorder::entry(const Signature& signature) {
  const auto found = entries_.find(signature);
  if (found != entries_.end()) return found->second.get();
  if (entries_.size() >= kMaxSignatures) return nullptr;
  auto& made = entries_[signature] = std::make_unique<Entry>();
  made->signature = signature;
  return made.get();
}

Recorder::Entry* Recorder::entry(std::uint64_t tape) {
  const auto found = entries_.lower_bound(Signature{tape, 0});
  return found == entries_.end() || found->first[0] != tape ? nullptr : found->second.get();
}

void Recorder::on_begin(const wire::Begin& begin, std::span<const std::uint64_t> inputs) {
  recording_.reset();
  kept_inputs_.clear();
  request_ = begin.request;
  recorded_entry_ = entry(Signature{begin.signature[0], begin.signature[1]});
  if (recorded_entry_ == nullptr || engine_ == nullptr || recorded_entry_->fruitless >= kMaxAttempts) return;
  Origin origin = options_.origin;
  origin.signature = recorded_entry_->signature;
  if (!std::exchange(recorded_entry_->looked, true)) {
    for (Kept& kept : candidates_.of(origin.signature, origin, kMaxCandidates))
      recorded_entry_->candidates.push_back({std::move(kept.tape), std::move(kept.path), true});
  }
  recording_.emplace(std::move(origin), inputs);
  if (options_.compare && !recorded_entry_->candidates.empty()) keep_inputs(inputs);
}

void Recorder::keep_inputs(std::span<const std::uint64_t> inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    auto storage = engine_->storage(inputs[i]);
    if (!storage.ok()) {
      kept_inputs_.clear();
      return;
    }
    bool written = false;
    for (const Candidate& candidate : recorded_entry_->candidates)
      for (const Place& place : candidate.tape.places)
        written = written || (place.kind == Class::kInput && place.value == i && place.written);
    if (!written) {
      kept_inputs_.push_back(storage.value());
      continue;
    }
    const executor::Compute& compute = engine_->compute();
    c10::Storage copy = compute.make_storage(storage.value().nbytes());
    if (!compute.copy(copy, storage.value(), copy.nbytes()).ok()) {
      kept_inputs_.clear();
      return;
    }
    kept_inputs_.push_back(std::move(copy));
  }
}

void Recorder::on_create(std::uint64_t name, std::uint64_t bytes) {
  if (recording_) recording_->create(name, bytes);
}

void Recorder::on_resize(std::uint64_t name, std::uint64_t bytes) {
  if (!held_.empty()) lost(name);
  if (recording_) recording_->resize(name, bytes);
}

void Recorder::on_free(std::span<const std::uint64_t> names) {
  if (!held_.empty())
    for (const auto name : names) lost(name);
  if (recording_) recording_->free(names);
}

void Recorder::on_write(std::uint64_t name, std::uint64_t offset, std::span<const std::byte> data) {
  touched(name);
  if (recording_) recording_->write(name, offset, data);
}

void Recorder::on_read(std::uint64_t name, std::uint64_t offset, std::span<const std::byte> data) {
  if (recording_) recording_->read(name, offset, data);
}

void Recorder::on_call(std::uint32_t, const std::shared_ptr<executor::Operation>& operation,
                       std::span<const std::uint64_t> slots, std::span<const std::uint64_t> results, bool learned) {
  if (!held_.empty())
    for (std::size_t i = 0; i < slots.size(); ++i)
      if (operation->slots()[i].written) touched(slots[i]);
  if (recording_) recording_->call(operation, slots, results, learned);
}

void Recorder::on_value(const std::shared_ptr<executor::Operation>&, std::span<const std::byte> items) {
  if (recording_) recording_->value(items);
}

void Recorder::on_seed(const wire::Seed& seed) {
  if (recording_) recording_->seed(seed);
}

void Recorder::on_error(const Status& error) {
  if (recording_) recording_->refuse("it failed: " + error.text());
}

// A held storage has other contents: what was captured of it for files is no longer what it is.
void Recorder::touched(std::uint64_t name) {
  if (held_.contains(name)) changed_.insert(name);
}

// A held storage is gone: its name will mean something else.
void Recorder::lost(std::uint64_t name) {
  if (held_.erase(name) == 0) return;
  changed_.erase(name);
  auto holds = [&](const Tape& tape) {
    return std::any_of(tape.places.begin(), tape.places.end(),
                       [&](const Place& place) { return place.kind == Class::kHeld && place.value == name; });
  };
  for (auto& [signature, entry] : entries_) {
    // What was kept of it has the storage's contents, and waits for the next session.
    std::erase_if(entry->candidates, [&](const Candidate& candidate) { return holds(candidate.tape); });
    std::erase_if(entry->players, [&](const auto& player) { return holds(player->tape()); });
    entry->captured.erase(name);
  }
}

void Recorder::on_end(std::uint64_t request, std::span<const std::uint64_t> names,
                      std::span<const executor::TensorSpec> outputs) {
  if (!recording_) return;
  Entry& entry = *recorded_entry_;
  ++entry.recorded;
  if (request != request_) recording_->refuse("another request ended than began");
  auto recorded = recording_->finish(names, outputs);
  recording_.reset();
  if (!recorded.ok()) {
    entry.refused = recorded.status().text();
    ++entry.fruitless;
  } else {
    verify(entry, std::move(recorded).value(), names, outputs);
  }
  kept_inputs_.clear();
}

void Recorder::verify(Entry& entry, Recorded recorded, std::span<const std::uint64_t> names,
                      std::span<const executor::TensorSpec> outputs) {
  if (std::any_of(entry.players.begin(), entry.players.end(),
                  [&](const auto& player) { return same_stream(player->tape(), recorded.tape); }))
    return;
  const auto found = std::find_if(entry.candidates.begin(), entry.candidates.end(),
                                  [&](const Candidate& candidate) { return same(candidate, recorded.tape); });
  if (found == entry.candidates.end()) {
    if (!entry.candidates.empty()) {
      entry.refused =
          "it did not do the same again: " + difference(entry.candidates.back().tape, recorded.tape, recorded.operations);
      ++entry.fruitless;
    }
    add_candidate(entry, std::move(recorded.tape));
    return;
  }
  if (entry.players.size() >= kMaxVariants) {
    entry.refused = "it has " + std::to_string(kMaxVariants) + " tapes for values read back, and needs another";
    ++entry.fruitless;
    return;
  }
  auto player = Player::prepare(
      std::move(recorded.tape), [this](const Place& place) { return find(place); }, engine_->compute(),
      std::move(recorded.operations));
  const std::string why = player.ok() ? compare(*player.value(), names, outputs) : player.status().text();
  const std::string file = std::move(found->file);
  entry.candidates.erase(found);
  if (!why.empty()) {
    candidates_.remove(file);
    entry.refused = why;
    ++entry.fruitless;
    return;
  }
  capture(entry, *player.value());
  entry.players.push_back(std::move(player).value());
  if (!file.empty()) entry.verified.push_back(file);
  entry.refused.clear();
  entry.fruitless = 0;
  if (!options_.folder.empty()) write_files(entry);
}

// A stream that waits for a second one like it, here and in later sessions.
void Recorder::add_candidate(Entry& entry, Tape tape) {
  if (entry.candidates.size() >= kMaxCandidates) {
    candidates_.remove(entry.candidates.front().file);
    entry.candidates.erase(entry.candidates.begin());
  }
  for (const Place& place : tape.places)
    if (place.kind == Class::kHeld) held_.insert(place.value);
  std::string file;
  if (!options_.candidates.empty()) {
    // What it holds and does not change has the contents now that the request has seen.
    Tape kept = tape;
    std::uint64_t bytes = 0;
    for (Place& place : kept.places) {
      if (place.kind != Class::kHeld || place.written) continue;
      const auto storage = find(place);
      if (!storage.ok() || (bytes += storage.value().nbytes()) > kMaxHeldBytes) break;
      std::vector<std::byte> held(storage.value().nbytes());
      if (!engine_->compute().read(storage.value(), 0, held).ok()) break;
      place = {Class::kConstant, false, kept.blobs.size(), held.size()};
      kept.blobs.push_back(std::move(held));
    }
    file = candidates_.add(kept);
  }
  entry.candidates.push_back({std::move(tape), std::move(file), false});
}

// Whether a request did what the candidate says.
bool Recorder::same(const Candidate& candidate, const Tape& recorded) const {
  const Tape& kept = candidate.tape;
  if (!candidate.earlier) return same_stream(kept, recorded);
  if (kept.places.size() != recorded.places.size() || kept.blobs.size() < recorded.blobs.size()) return false;
  for (std::size_t i = 0; i < kept.places.size(); ++i)
    if (kept.places[i] != recorded.places[i] && !same_constant(candidate, kept.places[i], recorded.places[i]))
      return false;
  return kept.origin == recorded.origin && kept.templates == recorded.templates &&
         kept.instructions == recorded.instructions && kept.operands == recorded.operands &&
         std::equal(recorded.blobs.begin(), recorded.blobs.end(), kept.blobs.begin()) &&
         kept.outputs == recorded.outputs && kept.inputs == recorded.inputs;
}

// Whether a storage that this session holds has the contents that another one held there.
bool Recorder::same_constant(const Candidate& candidate, const Place& kept, const Place& held) const {
  if (kept.kind != Class::kConstant || held.kind != Class::kHeld || held.written || held.bytes > kept.bytes)
    return false;
  const auto storage = find(held);
  if (!storage.ok() || storage.value().nbytes() != kept.bytes) return false;
  std::vector<std::byte> room;
  const auto found = engine_->compute().look(storage.value(), 0, kept.bytes, room);
  return found.ok() && (kept.bytes == 0 ||
                        std::memcmp(found.value().data(), candidate.tape.blobs[kept.value].data(), kept.bytes) == 0);
}

void Recorder::saved(const Signature& signature) {
  const auto found = entries_.find(signature);
  if (found == entries_.end()) return;
  for (const std::string& file : std::exchange(found->second->verified, {})) candidates_.remove(file);
}

// The replay of what was just computed eagerly; empty where all bits agree.
std::string Recorder::compare(Player& player, std::span<const std::uint64_t> names,
                              std::span<const executor::TensorSpec> outputs) {
  const Tape& tape = player.tape();
  // A state that the request changes would be changed twice.
  const bool changes = std::any_of(tape.places.begin(), tape.places.end(), [](const Place& place) {
    return place.written && (place.kind == Class::kHeld || place.kind == Class::kWeight);
  });
  if (!options_.compare || changes || kept_inputs_.size() != tape.inputs) return {};
  const bool seeds = std::any_of(tape.instructions.begin(), tape.instructions.end(),
                                 [](const Instruction& it) { return it.op == Op::kSeed; });
  const auto state = seeds ? engine_->generators().state(0) : std::vector<std::byte>();
  auto replayed = player.run(kept_inputs_, surroundings());
  if (seeds && !engine_->generators().set_state(0, state).ok()) return "its random numbers could not be put back";
  if (!replayed.ok()) return replayed.status().text();
  if (replayed.value().missed) return "its replay missed a guard that the request itself had met";
  for (std::size_t i = 0; i < names.size(); ++i) {
    auto eager = engine_->storage(names[i]);
    if (!eager.ok()) return eager.status().text();
    const auto a = on_host(executor::make_tensor(eager.value(), outputs[i]));
    const auto b = on_host(executor::make_tensor(replayed.value().outputs[i], outputs[i]));
    if (a.nbytes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) != 0)
      return "its replay gave other bits than the request itself, in output " + std::to_string(i);
  }
  return {};
}

// What the session holds and never changes becomes part of the tape's file, where it is small.
void Recorder::capture(Entry& entry, const Player& player) {
  std::uint64_t bytes = 0;
  for (const auto& [name, data] : entry.captured) bytes += data.size();
  for (const Place& place : player.tape().places) {
    if (place.kind != Class::kHeld) continue;
    held_.insert(place.value);
    const auto storage = find(place);
    if (place.written || !storage.ok() || (bytes += storage.value().nbytes()) > kMaxHeldBytes) continue;
    std::vector<std::byte> held(storage.value().nbytes());
    if (!engine_->compute().read(storage.value(), 0, held).ok()) continue;
    entry.captured[place.value] = std::move(held);
    changed_.erase(place.value);
  }
}

Result<c10::Storage> Recorder::find(const Place& place) const {
  if (place.kind == Class::kWeight)
    return weights_at(options_.origin.model_base, options_.origin.model_bytes, engine_->compute())(place);
  return engine_->storage(place.value);
}

Status Recorder::on_replay(executor::Engine& engine, std::uint64_t tape, std::span<const std::uint64_t> inputs,
                           std::span<const std::uint64_t> outputs, std::vector<std::byte>& answer) {
  wire::Writer out;
  auto send = [&] {
    const auto bytes = out.as_bytes();
    answer.assign(bytes.begin(), bytes.end());
    return Status();
  };
  if (tape == kDescribeTapes) {
    const std::string text = describe();
    out.word(static_cast<std::uint64_t>(Outcome::kDescription));
    out.word(text.size());
    out.text(text);
    return send();
  }
  std::vector<c10::Storage> given;
  for (const auto name : inputs) {
    auto storage = engine.storage(name);
    if (!storage.ok()) return storage.status();
    given.push_back(std::move(storage).value());
  }
  Entry* entry = this->entry(tape);
  Played played;
  if (entry != nullptr) {
    for (const auto& player : entry->players)
      if (player->tape().outputs.size() > outputs.size())
        return Status(Code::kInvalid, "REPLAY names fewer outputs than the tape has");
    auto result = play(entry->players, given, surroundings());
    if (!result.ok()) return result.status();
    played = std::move(result).value();
  }
  out.word(static_cast<std::uint64_t>(played.outcome));
  out.word(played.outputs.size());
  if (played.outcome == Outcome::kDone) {
    for (const Place& place : played.tape->places)
      if (place.kind == Class::kHeld && place.written) touched(place.value);
    for (std::size_t k = 0; k < played.outputs.size(); ++k)
      ROUSE_RETURN_IF_ERROR(engine.put(outputs[k], std::move(played.outputs[k])));
    write_outputs(*played.tape, out);
  }
  return send();
}

}  // namespace rouse::tape
