// Replays as a graph of the device: what comes of them is what comes of replays operator by operator. On the CPU, which
// has no graphs, and on a device whose memory this process may not touch.
#include "rouse/tape/graph.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <cstring>
#include <map>
#include <string>

#include "places.h"
#include "rouse/tape/player.h"
#include "rouse/wire/words.h"

namespace rouse::tape {
namespace {

using wire::Tag;

constexpr std::int64_t kElements = 100;
constexpr std::uint64_t kBytes = kElements * 4;
// Runs before the device is given a graph.
constexpr std::uint64_t kWalks = 2;

int waits_called = 0;

// x + x[0], which the host reads.
at::Tensor waits(const at::Tensor& x) {
  ++waits_called;
  return x.add(x.select(0, 0).item());
}

TORCH_LIBRARY(rouse_graph_test, library) { library.def("waits(Tensor x) -> Tensor", &waits); }

void spec(wire::Writer& out, Tag tag, std::int64_t elements = kElements) {
  out.item(tag, 0, static_cast<std::uint8_t>(c10::ScalarType::Float), 0, 1);
  out.word(0);
  out.word(static_cast<std::uint64_t>(elements));
  out.word(1);
}

// A tape, written by hand. All its tensors are vectors.
class Maker {
 public:
  Maker() { tape.origin.model_bytes = std::uint64_t{1} << 40; }

  std::uint32_t place(Class kind, std::uint64_t value = 0, bool written = false) {
    if (kind == Class::kInput) tape.inputs = static_cast<std::uint32_t>(value) + 1;
    tape.places.push_back({kind, written, value, kBytes});
    return static_cast<std::uint32_t>(tape.places.size() - 1);
  }
  std::uint32_t input(bool written = false) { return place(Class::kInput, tape.inputs, written); }
  std::uint32_t constant(float value) { return place(Class::kConstant, blob(value)); }
  std::uint32_t create() {
    const auto made = place(Class::kScratch, 0, true);
    add(Op::kCreate, {made}).count = kBytes;
    return made;
  }
  void write(std::uint32_t where, float value) { add(Op::kWrite, {where}).number = blob(value); }
  void guard(std::uint32_t where, float value) { add(Op::kGuard, {where}).number = blob(value); }
  void seed(std::uint64_t value) { add(Op::kSeed, {}).offset = value; }
  // Its arguments that are no tensors are in `rest`; the result is new.
  std::uint32_t call(std::string_view name, std::string_view overload, std::vector<std::uint32_t> slots,
                     const wire::Writer& rest = {}) {
    const auto made = place(Class::kScratch);
    wire::Writer result;
    spec(result, Tag::kNew);
    result.word(kBytes);
    const auto count = static_cast<std::uint16_t>(slots.size());
    slots.push_back(made);
    add(name, overload, slots, count, rest, result);
    return made;
  }
  // The same, of an operator that changes its first argument, and returns it with so many elements.
  void change(std::string_view name, std::string_view overload, const std::vector<std::uint32_t>& slots,
              const wire::Writer& rest, std::int64_t elements = kElements) {
    wire::Writer result;
    spec(result, Tag::kAlias, elements);
    result.word(static_cast<std::uint64_t>(elements) * 4);
    add(name, overload, slots, static_cast<std::uint16_t>(slots.size()), rest, result);
  }
  std::uint32_t sum(std::uint32_t a, std::uint32_t b) { return call("aten::add", "Tensor", {a, b}, alpha()); }
  std::uint32_t product(std::uint32_t a, std::uint32_t b) { return call("aten::mul", "Tensor", {a, b}); }
  void increase(std::uint32_t a, std::uint32_t b) { change("aten::add_", "Tensor", {a, b}, alpha()); }
  void output(std::uint32_t which) {
    tape.outputs.push_back({which, static_cast<std::uint8_t>(c10::ScalarType::Float), 0, 0, {kElements}, {1}});
  }

  Tape tape;

 private:
  static wire::Writer alpha() {
    wire::Writer rest;
    rest.item(Tag::kInt);
    rest.word(1);
    return rest;
  }
  std::uint32_t blob(float value) {
    const std::vector<float> values(kElements, value);
    const auto bytes = std::as_bytes(std::span(values));
    tape.blobs.emplace_back(bytes.begin(), bytes.end());
    return static_cast<std::uint32_t>(tape.blobs.size() - 1);
  }
  Instruction& add(Op op, const std::vector<std::uint32_t>& operands) {
    Instruction instruction;
    instruction.op = op;
    instruction.first = static_cast<std::uint32_t>(tape.operands.size());
    tape.operands.insert(tape.operands.end(), operands.begin(), operands.end());
    return tape.instructions.emplace_back(instruction);
  }
  void add(std::string_view name, std::string_view overload, const std::vector<std::uint32_t>& operands,
           std::uint16_t slots, const wire::Writer& rest, const wire::Writer& results) {
    wire::Writer arguments, message;
    for (std::uint16_t i = 0; i < slots; ++i) spec(arguments, Tag::kTensor);
    arguments.bytes(rest.as_bytes());
    wire::Template head{};
    head.header.kind = static_cast<std::uint16_t>(wire::Kind::kTemplate);
    head.number = static_cast<std::uint32_t>(tape.templates.size());
    head.name_bytes = static_cast<std::uint16_t>(name.size());
    head.overload_bytes = static_cast<std::uint16_t>(overload.size());
    head.argument_bytes = static_cast<std::uint32_t>(arguments.size_bytes());
    head.result_bytes = static_cast<std::uint32_t>(results.size_bytes());
    head.header.size = static_cast<std::uint32_t>(sizeof(head) + wire::padded(name.size()) +
                                                  wire::padded(overload.size()) + arguments.size_bytes() +
                                                  results.size_bytes());
    message.head(head);
    message.text(name);
    message.text(overload);
    message.bytes(arguments.as_bytes());
    message.bytes(results.as_bytes());
    const auto bytes = message.as_bytes();
    tape.templates.emplace_back(bytes.begin(), bytes.end());
    Instruction& instruction = add(Op::kCall, operands);
    instruction.number = head.number;
    instruction.slots = slots;
    instruction.results = static_cast<std::uint16_t>(operands.size() - slots);
  }
};

class TapeGraph : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Player> prepare(const Maker& maker) {
    auto player = Player::prepare(
        maker.tape, [this](const Place& place) -> Result<c10::Storage> { return kept.at(place.value); }, compute);
    EXPECT_TRUE(player.ok()) << player.status().describe();
    return std::move(player).value();
  }
  c10::Storage filled(float value) const {
    const c10::Storage made = compute.make_storage(kBytes);
    fill(made, value);
    return made;
  }
  void fill(const c10::Storage& storage, float value) const {
    const std::vector<float> values(kElements, value);
    ASSERT_TRUE(compute.write(storage, 0, std::as_bytes(std::span(values))).ok());
  }
  // What all of it is; no number where it is not all the same.
  float value_of(const c10::Storage& storage) const {
    std::vector<float> values(kElements);
    EXPECT_TRUE(compute.read(storage, 0, std::as_writable_bytes(std::span(values))).ok());
    return values == std::vector<float>(kElements, values[0]) ? values[0] : NAN;
  }
  std::vector<c10::Storage> run(Player& player, const std::vector<c10::Storage>& inputs) {
    auto replayed = player.run(inputs, {generators, residency});
    EXPECT_TRUE(replayed.ok()) << replayed.status().describe();
    EXPECT_FALSE(replayed.ok() && replayed.value().missed);
    return replayed.ok() ? std::move(replayed).value().outputs : std::vector<c10::Storage>();
  }
  // Of a tape that may be a graph, after so many runs.
  std::uint64_t as_graph(std::uint64_t runs) const { return graphs && runs > kWalks ? runs - kWalks : 0; }
  // Why a tape is no graph, where there are any.
  std::string refused(const std::string& why) const { return graphs ? why : Graph::supported(compute).text(); }

  const executor::Compute compute = accelerator::compute_at(GetParam());
  const bool graphs = Graph::supported(compute).ok();
  std::map<std::uint64_t, c10::Storage> kept;  // weights and what the session holds
  executor::Generators generators{compute.device()};
  executor::Residency* residency = nullptr;
};

TEST_P(TapeGraph, GivesWhatAWalkGives) {
  kept[7] = filled(2);
  Maker maker;
  const auto x = maker.input(), held = maker.place(Class::kHeld, 7);
  const auto three = maker.create();
  maker.write(three, 3);
  const auto y = maker.product(maker.sum(x, held), three);
  maker.increase(three, y);
  maker.output(y);
  maker.output(three);
  const auto player = prepare(maker);
  for (int i = 0; i < 10; ++i) {
    const auto outputs = run(*player, {filled(static_cast<float>(i))});
    ASSERT_EQ(outputs.size(), 2u);
    EXPECT_EQ(value_of(outputs[0]), static_cast<float>(i + 2) * 3);
    EXPECT_EQ(value_of(outputs[1]), static_cast<float>(i + 2) * 3 + 3);
  }
  // What is held is read anew.
  fill(kept[7], 5);
  EXPECT_EQ(value_of(run(*player, {filled(1)})[0]), 18);
  EXPECT_EQ(player->stats().replays, 11u);
  EXPECT_EQ(player->stats().graph_replays, as_graph(11)) << player->stats().no_graph;
  EXPECT_EQ(player->stats().no_graph.empty(), graphs);
}

TEST_P(TapeGraph, OutputsOfOneReplayStayAfterTheNext) {
  Maker maker;
  const auto x = maker.input();
  maker.output(maker.sum(x, x));
  const auto player = prepare(maker);
  std::vector<c10::Storage> kept_outputs;
  for (int i = 0; i < 6; ++i) kept_outputs.push_back(run(*player, {filled(static_cast<float>(i))})[0]);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(value_of(kept_outputs[static_cast<std::size_t>(i)]), static_cast<float>(2 * i));
  EXPECT_EQ(player->stats().graph_replays, as_graph(6)) << player->stats().no_graph;
}

TEST_P(TapeGraph, WhatItChangesIsTheCallersAndTheSessions) {
  kept[7] = filled(0);
  Maker maker;
  const auto x = maker.input(true), held = maker.place(Class::kHeld, 7, true);
  const auto one = maker.constant(1);
  maker.increase(x, one);
  maker.increase(held, x);
  maker.output(held);
  const auto player = prepare(maker);
  float total = 0;
  for (int i = 0; i < 6; ++i) {
    const c10::Storage given = filled(static_cast<float>(i));
    const auto outputs = run(*player, {given});
    total += static_cast<float>(i + 1);
    EXPECT_EQ(value_of(given), static_cast<float>(i + 1));
    EXPECT_EQ(value_of(kept[7]), total) << "once a replay, and not at the capture";
    EXPECT_EQ(outputs[0].unsafeGetStorageImpl(), kept[7].unsafeGetStorageImpl());
  }
  EXPECT_EQ(player->stats().graph_replays, as_graph(6)) << player->stats().no_graph;
}

TEST_P(TapeGraph, AnOutputThatTheTapeDoesNotMakeIsGivenItself) {
  kept[7] = filled(3);
  kept[64] = filled(4);
  Maker maker;
  const auto x = maker.input(), changed = maker.input(true);
  const auto held = maker.place(Class::kHeld, 7), weight = maker.place(Class::kWeight, 64);
  const auto constant = maker.constant(9);
  maker.increase(changed, x);
  const auto y = maker.sum(x, weight);
  for (const auto place : {x, changed, held, weight, constant, y, y}) maker.output(place);
  const auto player = prepare(maker);
  const c10::StorageImpl* first = nullptr;
  for (int i = 0; i < 5; ++i) {
    const std::vector<c10::Storage> given{filled(1), filled(2)};
    const auto outputs = run(*player, given);
    ASSERT_EQ(outputs.size(), 7u);
    EXPECT_EQ(outputs[0].unsafeGetStorageImpl(), given[0].unsafeGetStorageImpl());
    EXPECT_EQ(outputs[1].unsafeGetStorageImpl(), given[1].unsafeGetStorageImpl());
    EXPECT_EQ(value_of(outputs[1]), 3);
    EXPECT_EQ(outputs[2].unsafeGetStorageImpl(), kept[7].unsafeGetStorageImpl());
    EXPECT_EQ(outputs[3].unsafeGetStorageImpl(), kept[64].unsafeGetStorageImpl());
    if (first == nullptr) first = outputs[4].unsafeGetStorageImpl();
    EXPECT_EQ(outputs[4].unsafeGetStorageImpl(), first);
    EXPECT_EQ(value_of(outputs[4]), 9);
    EXPECT_EQ(value_of(outputs[5]), 5);
    EXPECT_EQ(outputs[5].unsafeGetStorageImpl(), outputs[6].unsafeGetStorageImpl());
  }
  EXPECT_EQ(player->stats().graph_replays, as_graph(5)) << player->stats().no_graph;
}

TEST_P(TapeGraph, WhatGuardsIsWalked) {
  Maker maker;
  const auto x = maker.input();
  const auto y = maker.sum(x, x);
  maker.guard(y, 8);
  maker.output(y);
  const auto player = prepare(maker);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(value_of(run(*player, {filled(4)})[0]), 8);
  auto missed = player->run(std::vector<c10::Storage>{filled(5)}, {generators});
  ASSERT_TRUE(missed.ok());
  EXPECT_TRUE(missed.value().missed);
  EXPECT_EQ(player->stats().graph_replays, 0u);
  EXPECT_EQ(player->stats().no_graph, refused("it compares values that were read back"));
}

TEST_P(TapeGraph, WhatDrawsRandomNumbersIsWalked) {
  Maker maker;
  const auto x = maker.input();
  wire::Writer none;
  none.item(Tag::kNone);
  maker.output(maker.call("aten::bernoulli", "", {x}, none));
  const auto unseeded = prepare(maker);
  maker.seed(1);
  const auto seeded = prepare(maker);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(value_of(run(*unseeded, {filled(1)})[0]), 1);
    EXPECT_EQ(value_of(run(*seeded, {filled(0)})[0]), 0);
  }
  EXPECT_EQ(unseeded->stats().graph_replays + seeded->stats().graph_replays, 0u);
  EXPECT_EQ(unseeded->stats().no_graph, refused("aten::bernoulli draws random numbers"));
  EXPECT_EQ(seeded->stats().no_graph, refused("aten::bernoulli draws random numbers"));
}

TEST_P(TapeGraph, WhatWaitsForTheDeviceIsCapturedOnceAndWalked) {
  kept[7] = filled(0);
  Maker maker;
  const auto x = maker.input(), held = maker.place(Class::kHeld, 7, true);
  maker.increase(held, x);
  maker.output(maker.call("rouse_graph_test::waits", "", {x}));
  const auto player = prepare(maker);
  waits_called = 0;
  float total = 0;
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(value_of(run(*player, {filled(static_cast<float>(i))})[0]), static_cast<float>(2 * i));
    total += static_cast<float>(i);
    EXPECT_EQ(value_of(kept[7]), total) << "nothing is left of what was captured";
  }
  EXPECT_EQ(waits_called, graphs ? 7 : 6) << "once more, to be captured";
  EXPECT_EQ(player->stats().graph_replays, 0u);
  EXPECT_FALSE(player->stats().no_graph.empty());
  // Another one is captured all the same.
  Maker other;
  const auto y = other.input();
  other.output(other.sum(y, y));
  const auto second = prepare(other);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(value_of(run(*second, {filled(3)})[0]), 6);
  EXPECT_EQ(second->stats().graph_replays, as_graph(4)) << second->stats().no_graph;
}

TEST_P(TapeGraph, WhatResizesAnInputIsWalked) {
  Maker maker;
  const auto x = maker.input(true);
  wire::Writer rest;
  rest.item(Tag::kIntList, 1);
  rest.word(2 * kElements);
  rest.item(Tag::kNone);
  maker.change("aten::resize_", "", {x}, rest, 2 * kElements);
  maker.output(x);
  const auto player = prepare(maker);
  for (int i = 0; i < 5; ++i) {
    const c10::Storage given = filled(6);
    EXPECT_EQ(run(*player, {given})[0].nbytes(), 2 * kBytes);
    EXPECT_EQ(given.nbytes(), 2 * kBytes);
    EXPECT_EQ(value_of(given), 6);
  }
  EXPECT_EQ(player->stats().graph_replays, 0u);
  EXPECT_FALSE(player->stats().no_graph.empty());
}

TEST_P(TapeGraph, WhatMovedIsFoundByAWalk) {
  kept[7] = filled(2);
  Maker maker;
  const auto x = maker.input();
  maker.output(maker.sum(x, maker.place(Class::kHeld, 7)));
  const auto player = prepare(maker);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(value_of(run(*player, {filled(1)})[0]), 3);
  EXPECT_EQ(player->stats().graph_replays, as_graph(4)) << player->stats().no_graph;
  // As an operator does that resizes it.
  kept[7].unsafeGetStorageImpl()->set_data_ptr_noswap(compute.allocate(kBytes));
  fill(kept[7], 5);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(value_of(run(*player, {filled(1)})[0]), 6);
  EXPECT_EQ(player->stats().graph_replays, as_graph(4));
  EXPECT_FALSE(player->stats().no_graph.empty());
}

TEST_P(TapeGraph, InputsThatAreOneStorageAreWalked) {
  Maker maker;
  const auto x = maker.input(true), y = maker.input();
  maker.increase(x, y);
  maker.output(maker.sum(x, y));
  const auto player = prepare(maker);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(value_of(run(*player, {filled(1), filled(2)})[0]), 5);
  const c10::Storage both = filled(1);
  EXPECT_EQ(value_of(run(*player, {both, both})[0]), 4);
  EXPECT_EQ(value_of(run(*player, {filled(1), filled(2)})[0]), 5);
  EXPECT_EQ(player->stats().graph_replays, as_graph(5)) << player->stats().no_graph;
}

// Weights that arrive once somebody waits for them.
class Arriving final : public executor::Residency {
 public:
  bool all_ready() const override { return ready; }
  Status wait_ready(std::uint64_t, std::uint64_t) override { return {}; }
  Status wait_rows(std::uint64_t, std::uint64_t, std::span<const std::int64_t>) override { return {}; }
  bool ready = false;
};

TEST_P(TapeGraph, WhileWeightsArriveItIsWalked) {
  kept[64] = filled(4);
  Arriving arriving;
  residency = &arriving;
  Maker maker;
  const auto x = maker.input();
  maker.output(maker.sum(x, maker.place(Class::kWeight, 64)));
  const auto player = prepare(maker);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(value_of(run(*player, {filled(1)})[0]), 5);
  EXPECT_EQ(player->stats().graph_replays, 0u);
  arriving.ready = true;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(value_of(run(*player, {filled(2)})[0]), 6);
  EXPECT_EQ(player->stats().graph_replays, graphs ? 4u : 0u) << player->stats().no_graph;
}

TEST_P(TapeGraph, ItsMemoryGoesWithThePlayer) {
  const auto before = accelerator::live_blocks();
  {
    Maker maker;
    const auto x = maker.input();
    const auto scratch = maker.create();
    maker.write(scratch, 2);
    maker.output(maker.product(maker.sum(x, x), scratch));
    const auto player = prepare(maker);
    for (int i = 0; i < 5; ++i) run(*player, {filled(1)});
    EXPECT_EQ(player->stats().graph_replays, as_graph(5)) << player->stats().no_graph;
  }
  EXPECT_EQ(accelerator::live_blocks(), before);
  {
    Maker maker;
    const auto x = maker.input();
    maker.output(maker.call("rouse_graph_test::waits", "", {maker.sum(x, x)}));
    const auto player = prepare(maker);
    const auto prepared = accelerator::live_blocks();
    for (int i = 0; i < 5; ++i) run(*player, {filled(1)});
    EXPECT_EQ(accelerator::live_blocks(), prepared) << "a capture that failed keeps nothing";
  }
  EXPECT_EQ(accelerator::live_blocks(), before);
}

TEST_P(TapeGraph, GraphsShareWhatTheyNeedMeanwhile) {
  constexpr int kSums = 8;
  Maker maker;
  const auto x = maker.input();
  auto y = x;
  for (int i = 0; i < kSums; ++i) y = maker.sum(y, x);
  maker.output(y);
  const auto first = prepare(maker), second = prepare(maker);
  const auto walked = [&](Player& player) {
    for (std::uint64_t i = 0; i <= kWalks; ++i) EXPECT_EQ(value_of(run(player, {filled(1)})[0]), kSums + 1);
  };
  const auto before = accelerator::live_blocks();
  walked(*first);
  const auto one = accelerator::live_blocks();
  walked(*second);
  if (graphs) {
    EXPECT_GE(one - before, static_cast<std::uint64_t>(kSums));
    EXPECT_LE(accelerator::live_blocks() - one, 2u) << "more than a copy of its input and its output";
  }
  for (int i = 0; i < 6; ++i) {
    Player& player = i % 2 == 0 ? *first : *second;
    EXPECT_EQ(value_of(run(player, {filled(static_cast<float>(i))})[0]), static_cast<float>(i * (kSums + 1)));
  }
  EXPECT_EQ(first->stats().graph_replays, as_graph(kWalks + 4));
}

TEST_P(TapeGraph, RehearsingCapturesNothing) {
  Maker maker;
  const auto x = maker.input();
  maker.output(maker.sum(x, x));
  const auto player = prepare(maker);
  for (int i = 0; i < 4; ++i) player->rehearse(nullptr);
  for (std::uint64_t runs = 1; runs < 5; ++runs) {
    EXPECT_EQ(value_of(run(*player, {filled(1)})[0]), 2);
    EXPECT_EQ(player->stats().graph_replays, as_graph(runs)) << player->stats().no_graph;
  }
}

TEST_P(TapeGraph, CapturingDoesNothingAndMayFail) {
  if (compute.host()) {
    EXPECT_EQ(Graph::supported(compute).code(), Code::kUnsupported);
    return;
  }
  if (!graphs) GTEST_SKIP() << Graph::supported(compute).text();
  const c10::Storage from = filled(1), to = filled(2);
  const auto graph = Graph::capture(compute, [&] { return compute.copy(to, from, kBytes); });
  ASSERT_TRUE(graph.ok()) << graph.status().describe();
  EXPECT_EQ(value_of(to), 2);
  fill(from, 3);
  ASSERT_TRUE(graph.value().replay().ok());
  EXPECT_EQ(value_of(to), 3);
  std::byte read;
  for (const auto& body : std::vector<std::function<Status()>>{
           [&] { return compute.synchronize(); }, [&] { return compute.read(from, 0, {&read, 1}); },
           [&] { return compute.write(to, 0, {&read, 1}); }, [] { return Status(Code::kFailed, "on purpose"); },
           []() -> Status { throw std::runtime_error("on purpose"); }}) {
    const auto failed = Graph::capture(compute, body);
    EXPECT_EQ(failed.status().code(), Code::kFailed);
    EXPECT_TRUE(compute.synchronize().ok()) << "nothing captures any more";
  }
  EXPECT_EQ(value_of(to), 3);
}

class StandInGraphs : public TapeGraph {};

TEST_P(StandInGraphs, WhatFailsInAGraphIsHeardOfWhenItIsWaitedFor) {
  Maker maker;
  const auto x = maker.input();
  maker.output(maker.sum(x, x));
  const auto player = prepare(maker);
  for (int i = 0; i < 4; ++i) run(*player, {filled(1)});
  const c10::Storage given = filled(1);
  const auto before = accelerator::synchronisations();
  accelerator::fail_next("an illegal address");
  run(*player, {given});
  EXPECT_EQ(accelerator::synchronisations(), before) << "a graph waits for nothing";
  EXPECT_NE(compute.synchronize().text().find("an illegal address"), std::string::npos);
  EXPECT_EQ(value_of(run(*player, {given})[0]), 2);
  EXPECT_EQ(player->stats().graph_replays, as_graph(6)) << player->stats().no_graph;
}

TEST_P(StandInGraphs, WhatFailedBeforeACaptureIsNotTheCaptures) {
  Maker maker;
  const auto x = maker.input();
  maker.output(maker.sum(x, x));
  const auto player = prepare(maker);
  for (int i = 0; i < 2; ++i) run(*player, {filled(1)});
  const c10::Storage given = filled(1);
  accelerator::fail_next("an illegal address");
  ASSERT_TRUE(compute.zero(given).ok());
  const auto failed = player->run(std::vector<c10::Storage>{given}, {generators});
  EXPECT_EQ(failed.ok(), !graphs);
  (void)compute.synchronize().ok();
  EXPECT_EQ(value_of(run(*player, {filled(1)})[0]), 2);
  EXPECT_EQ(player->stats().graph_replays, graphs ? 1u : 0u) << player->stats().no_graph;
}

INSTANTIATE_TEST_SUITE_P(Everywhere, TapeGraph, testing::ValuesIn(accelerator::places()), accelerator::name_of_place);
INSTANTIATE_TEST_SUITE_P(Everywhere, StandInGraphs, testing::Values("stand_in"), accelerator::name_of_place);

}  // namespace
}  // namespace rouse::tape
