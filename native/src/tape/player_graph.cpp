// Replays as a graph of the device: which tapes are one, how it is captured, and what is copied around it.
#include <algorithm>
#include <utility>

#include "rouse/tape/guarded.h"
#include "rouse/tape/player.h"

namespace rouse::tape {
namespace {

// Before it is captured: libraries set themselves up and compile kernels at the first calls, which no graph holds.
constexpr std::uint64_t kWalks = 2;

// Whether the host has to know values before it knows how large the results are.
bool shapes_depend_on_data(const executor::Operation& operation) {
  if (!operation.data_dependent()) return false;
  // The tag is the operator's: indexing depends on data only with a mask.
  const bool indexes = operation.name() == "aten::index.Tensor" || operation.name() == "aten::_unsafe_index.Tensor";
  return !indexes || std::any_of(operation.slots().begin(), operation.slots().end(), [](const executor::Slot& slot) {
    return slot.spec.dtype == c10::ScalarType::Bool || slot.spec.dtype == c10::ScalarType::Byte;
  });
}

// What outlives a capture stays where it is: an operator that resized it would leave it in the graph's memory, with
// nothing in it.
class Unmoved {
 public:
  void add(const c10::Storage& storage) {
    c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
    if (!impl->resizable()) return;
    impl->set_resizable(false);
    storages_.push_back(storage);
  }
  ~Unmoved() {
    for (const c10::Storage& storage : storages_) storage.unsafeGetStorageImpl()->set_resizable(true);
  }

 private:
  std::vector<c10::Storage> storages_;
};

}  // namespace

std::string Player::why_no_graph() const {
  if (const Status supported = Graph::supported(compute_); !supported.ok()) return supported.text();
  for (const Step& step : steps_) {
    switch (step.op) {
      case Op::kGuard:
      case Op::kValue:
        return "it compares values that were read back";
      case Op::kSeed:
        return "it sets the seed of random numbers";
      case Op::kResize:
        if (tape_.places[step.place].kind != Class::kScratch) return "it resizes a storage that outlives the request";
        break;
      case Op::kCall: {
        const executor::Operation& operation = *step.operation;
        if (operation.draws_random()) return operation.name() + " draws random numbers";
        if (operation.has_values()) return operation.name() + " returns a value to the host";
        if (shapes_depend_on_data(operation)) return "shapes of " + operation.name() + "'s results depend on data";
        break;
      }
      case Op::kCreate:
      case Op::kWrite:
        break;
    }
  }
  return {};
}

std::vector<const void*> Player::held_addresses() const {
  std::vector<const void*> addresses;
  for (const auto place : held_) addresses.push_back(storages_[place].data());
  return addresses;
}

bool Player::may_be_graph(std::span<const c10::Storage> inputs, const Surroundings& with) {
  if (!stats_.no_graph.empty() || stats_.replays < kWalks) return false;
  if (with.residency != nullptr && !with.residency->all_ready()) return false;
  auto addresses = held_addresses();
  if (captured_ && captured_->held != addresses) {
    captured_.reset();
    stats_.no_graph = "what the session holds has moved";
    return false;
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (captured_ && captured_->inputs[i].nbytes() != inputs[i].nbytes()) return false;
    if (inputs[i].nbytes() != 0) addresses.push_back(inputs[i].data());
  }
  // The graph's inputs are apart from each other and from what is held: where a request's are not, a change of one
  // would not be a change of the other.
  std::sort(addresses.begin(), addresses.end());
  return std::adjacent_find(addresses.begin(), addresses.end()) == addresses.end();
}

Status Player::capture(std::span<const c10::Storage> inputs, const Surroundings& with) {
  // What the device was given before may fail yet, which is not the capture's.
  ROUSE_RETURN_IF_ERROR(compute_.synchronize());
  std::vector<c10::Storage> own, outputs;
  std::optional<Graph> graph;
  const Status captured = guarded("a capture", [&]() -> Status {
    Unmoved unmoved;
    for (const c10::Storage& input : inputs) {
      own.push_back(compute_.make_storage(input.nbytes()));
      own.back().unsafeGetStorageImpl()->set_resizable(false);
      ROUSE_RETURN_IF_ERROR(compute_.copy(own.back(), input, input.nbytes()));
    }
    for (const auto place : held_) unmoved.add(storages_[place]);
    auto made = Graph::capture(compute_, [&]() -> Status {
      auto walked = walk(own, {with.generators});
      if (!walked.ok()) return walked.status();
      outputs = std::move(walked).value().outputs;
      return {};
    });
    if (!made.ok()) return made.status();
    graph = std::move(made).value();
    return {};
  });
  forget();
  if (captured.ok())
    captured_ = Captured{*std::move(graph), std::move(own), std::move(outputs), held_addresses()};
  else
    stats_.no_graph = captured.text();
  return {};
}

Result<Replayed> Player::replay_graph(std::span<const c10::Storage> inputs) {
  Replayed replayed;
  const Status status = guarded("a replay", [&]() -> Status {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      ROUSE_RETURN_IF_ERROR(compute_.copy(captured_->inputs[i], inputs[i], inputs[i].nbytes()));
    ROUSE_RETURN_IF_ERROR(captured_->graph.replay());
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (tape_.places[inputs_[i]].written)
        ROUSE_RETURN_IF_ERROR(compute_.copy(inputs[i], captured_->inputs[i], inputs[i].nbytes()));
    for (std::size_t k = 0; k < tape_.outputs.size(); ++k) {
      const std::uint32_t which = tape_.outputs[k].place;
      const Place& place = tape_.places[which];
      const auto same = std::find_if(tape_.outputs.begin(), tape_.outputs.begin() + static_cast<long>(k),
                                     [&](const Output& other) { return other.place == which; });
      if (place.kind == Class::kInput) {
        replayed.outputs.push_back(inputs[place.value]);
      } else if (place.kind != Class::kScratch) {
        replayed.outputs.push_back(storages_[which]);
      } else if (same != tape_.outputs.begin() + static_cast<long>(k)) {
        replayed.outputs.push_back(replayed.outputs[static_cast<std::size_t>(same - tape_.outputs.begin())]);
      } else {
        // The caller's own: the next replay overwrites the graph's.
        const c10::Storage& made = captured_->outputs[k];
        replayed.outputs.push_back(compute_.make_storage(made.nbytes()));
        ROUSE_RETURN_IF_ERROR(compute_.copy(replayed.outputs.back(), made, made.nbytes()));
      }
    }
    return {};
  });
  if (!status.ok()) return status;
  ++stats_.replays;
  ++stats_.graph_replays;
  return replayed;
}

}  // namespace rouse::tape
