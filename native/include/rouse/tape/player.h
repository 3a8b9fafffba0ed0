// A tape made ready to run: operators looked up, argument lists built, tensors made, so that a replay only binds
// storages and calls kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rouse/base/status.h"
#include "rouse/executor/arena.h"
#include "rouse/executor/compute.h"
#include "rouse/executor/engine.h"
#include "rouse/executor/generators.h"
#include "rouse/tape/graph.h"
#include "rouse/tape/tape.h"

namespace rouse::tape {

// What a replay may use. All of it outlives the call.
struct Surroundings {
  executor::Generators& generators;
  // Memory still on its way in; null: all is there.
  executor::Residency* residency = nullptr;
  // Where planned replays of this session lie; null: they are not planned. Plans also need install_allocator() and a
  // UseHeap around the call. On a device whose memory is not the process's own nothing is planned: its allocator is not
  // ours to place blocks with.
  executor::Arena* arena = nullptr;
};

struct Replayed {
  // A value that Python had read while recording was another one: nothing of the outputs is there, and nothing that
  // outlives the request has changed. `missed`: which instruction.
  std::optional<std::uint32_t> missed;
  std::vector<c10::Storage> outputs;  // one an output of the tape
};

struct PlayerStats {
  std::uint64_t replays = 0, guards_missed = 0;
  std::uint64_t planned_blocks = 0, unplanned_blocks = 0;
  std::uint64_t arena_bytes = 0;    // of the plan; 0: there is none
  std::uint64_t least_bytes = 0;    // that any plan would need
  std::uint64_t all_bytes = 0;      // of all blocks together
  std::uint64_t graph_replays = 0;  // of `replays`: those that the device was given as one graph
  std::string no_graph;             // why there are none of them; empty: there are, or may yet be
};

// Not thread-safe: one replay at a time.
class Player {
 public:
  // The storage of a weight or of what the session holds.
  using Find = std::function<Result<c10::Storage>(const Place&)>;

  // It runs on `compute`, where what `find` gives lies, too. `operations`: the tape's templates decoded for it, where
  // the caller has them. INVALID or UNSUPPORTED where a template does not hold in this process or does not fit the tape.
  static Result<std::unique_ptr<Player>> prepare(Tape tape, const Find& find, const executor::Compute& compute = {},
                                                 std::vector<std::shared_ptr<executor::Operation>> operations = {});

  // Runs it. INVALID: other inputs than the tape's; FAILED: an operator failed. A device that computes beside the host
  // may still be at it when this returns; guards wait for it. The first runs give it operator by operator, later ones
  // as one graph, where the device has graphs and the tape can be one (PlayerStats::no_graph); both come to the same.
  Result<Replayed> run(std::span<const c10::Storage> inputs, const Surroundings& with);

  // Runs its small operators once, on zeros in memory of their own, so that the first replay does not pay for what
  // kernels prepare at the first call of a shape, nor for its memory. What they return, or fail with, goes nowhere.
  void rehearse(executor::Arena* arena);

  const Tape& tape() const { return tape_; }
  const PlayerStats& stats() const { return stats_; }

 private:
  struct Step {
    Op op = Op::kCall;
    std::shared_ptr<executor::Operation> operation;
    std::vector<at::Tensor> tensors;                             // one a slot
    std::vector<std::pair<std::uint32_t, std::uint32_t>> binds;  // slot, place: those whose storage changes
    // The same, of tensors that the operator changes: made anew, as it may have resized the one before.
    std::vector<std::pair<std::uint32_t, std::uint32_t>> remakes;
    std::vector<std::pair<std::uint32_t, std::uint64_t>> reads;  // slot, address: of weights
    std::vector<std::uint32_t> makes, ends;                      // places
    std::uint32_t place = 0, number = 0;
    std::uint64_t offset = 0, count = 0;
    c10::Storage constant;  // of a write: its bytes on the device; none where the process may touch that memory
  };
  // A replay as a graph, in which all memory has the address that it had when it was captured.
  struct Captured {
    Graph graph;
    std::vector<c10::Storage> inputs;   // its own: what a request gives is copied into them
    std::vector<c10::Storage> outputs;  // one an output: its own, where the tape makes them
    std::vector<const void*> held;      // where what the session holds lay: held_addresses()
  };

  Player(Tape tape, const executor::Compute& compute) : compute_(compute), tape_(std::move(tape)) {}
  Status bind(const Find& find);
  Status prepare_call(const Instruction& instruction, Step& step);
  Status step(Step& step, const Surroundings& with, bool& missed);
  Status call(Step& step, const Surroundings& with);
  Status bound_call(Step& step, const Surroundings& with);
  // Waits for a part of a place that is a weight.
  Status wait_for_place(std::uint32_t place, std::uint64_t offset, std::uint64_t bytes, const Surroundings& with) const;
  Result<Replayed> walk(std::span<const c10::Storage> inputs, const Surroundings& with);
  // Replays as a graph: player_graph.cpp.
  std::string why_no_graph() const;
  // Whether this replay may be one. It forgets a graph whose memory is no longer where it was.
  bool may_be_graph(std::span<const c10::Storage> inputs, const Surroundings& with);
  std::vector<const void*> held_addresses() const;
  // Not ok: what came before it failed. A capture that fails is not tried again, and leaves its reason.
  Status capture(std::span<const c10::Storage> inputs, const Surroundings& with);
  Result<Replayed> replay_graph(std::span<const c10::Storage> inputs);
  void learn_plan(std::vector<Lifetime> lifetimes);
  void forget();

  const executor::Compute compute_;
  Tape tape_;
  std::vector<std::shared_ptr<executor::Operation>> operations_;
  std::vector<Step> steps_;
  std::vector<c10::Storage> storages_;  // by place
  std::vector<std::uint32_t> inputs_;   // places of inputs, in order
  std::vector<std::uint32_t> passing_;  // places that a replay leaves empty again
  std::vector<std::uint32_t> held_;     // places that the session holds
  c10::Storage empty_;
  std::optional<executor::Layout> layout_;
  int plans_tried_ = 0;
  std::optional<Captured> captured_;
  PlayerStats stats_;
  torch::jit::Stack stack_;
  std::vector<at::Tensor> returned_;
  std::vector<std::byte> read_;
};

}  // namespace rouse::tape
