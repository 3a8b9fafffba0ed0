// Requests through an engine with a recorder: recorded, verified, replayed, guarded, saved, loaded; on the CPU and on a
// device whose memory this process may not touch.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "rouse/base/file.h"
#include "rouse/executor/allocator.h"
#include "rouse/executor/engine.h"
#include "rouse/tape/recorder.h"
#include "rouse/wire/words.h"
#include "places.h"

namespace rouse::tape {
namespace {

using wire::Kind;
using wire::Tag;

constexpr std::int64_t kElements = 1000;
constexpr std::uint64_t kBytes = kElements * 4;
constexpr Signature kSignature{11, 22};

class Answers final : public executor::Responder {
 public:
  Status send(std::span<const std::byte> head, std::span<const std::byte> body) override {
    last.assign(head.begin(), head.end());
    last.insert(last.end(), body.begin(), body.end());
    return {};
  }
  std::uint64_t word(std::size_t at) const {
    std::uint64_t value;
    std::memcpy(&value, last.data() + 8 * at, 8);
    return value;
  }
  Kind kind() const { return static_cast<Kind>(word(0) >> 32 & 0xffff); }
  std::vector<std::byte> last;
};

// A client that knows two operators: template 0 adds, template 1 multiplies, template 2 draws.
class Client {
 public:
  explicit Client(const executor::Compute& compute, RecorderOptions options = {})
      : recorder(options), engine({.observer = &recorder, .compute = compute}) {
    recorder.attach(engine);
    heap = executor::Heap::make(1 << 30);
    use.emplace(*heap);
    describe(0, "aten::add", "Tensor", 2);
    describe(1, "aten::mul", "Tensor", 2);
    describe(2, "aten::bernoulli", "", 1);
  }

  template <typename T>
  void send(Kind kind, T head, std::span<const std::uint64_t> words = {}) {
    head.header = {static_cast<std::uint32_t>(sizeof(T) + 8 * words.size()), static_cast<std::uint16_t>(kind), 0};
    wire::Writer out;
    out.head(head);
    for (const auto word : words) out.word(word);
    const Status status = engine.handle(out.as_bytes(), answers);
    ASSERT_TRUE(status.ok()) << status.describe();
    ASSERT_TRUE(engine.sticky().ok()) << engine.sticky().describe();
  }

  void describe(std::uint32_t number, std::string_view name, std::string_view overload, int tensors) {
    wire::Writer arguments, results, out;
    for (int i = 0; i < tensors; ++i) spec(arguments, Tag::kTensor, 0);
    if (name == "aten::add") arguments.item(Tag::kInt), arguments.word(1);
    if (name == "aten::bernoulli") arguments.item(Tag::kNone);
    spec(results, Tag::kNew, 0);
    results.word(kBytes);
    wire::Template head{};
    head.number = number;
    head.name_bytes = static_cast<std::uint16_t>(name.size());
    head.overload_bytes = static_cast<std::uint16_t>(overload.size());
    head.argument_bytes = static_cast<std::uint32_t>(arguments.size_bytes());
    head.result_bytes = static_cast<std::uint32_t>(results.size_bytes());
    wire::Writer body;
    body.text(name);
    body.text(overload);
    body.bytes(arguments.as_bytes());
    body.bytes(results.as_bytes());
    send(Kind::kTemplate, head, body.view());
  }
  static void spec(wire::Writer& out, Tag tag, std::uint32_t count) {
    out.item(tag, count, static_cast<std::uint8_t>(c10::ScalarType::Float), 0, 1);
    out.word(0);
    out.word(kElements);
    out.word(1);
  }

  void create(std::uint64_t name) { send(Kind::kCreate, wire::Create{{}, name, kBytes}); }
  void free(std::uint64_t name) { send(Kind::kFree, wire::Header{}, name); }
  void send(Kind kind, wire::Header, std::uint64_t name) {
    wire::Writer out;
    out.head(wire::Header{16, static_cast<std::uint16_t>(kind), 0});
    out.word(name);
    ASSERT_TRUE(engine.handle(out.as_bytes(), answers).ok());
  }
  void write(std::uint64_t name, float value) {
    std::vector<float> values(kElements, value);
    std::vector<std::uint64_t> words(kBytes / 8);
    std::memcpy(words.data(), values.data(), kBytes);
    send(Kind::kWrite, wire::Span{{}, name, 0, kBytes}, words);
  }
  float read(std::uint64_t name) {
    send(Kind::kRead, wire::Span{{}, name, 40, 4});
    float value;
    std::memcpy(&value, answers.last.data() + sizeof(wire::Data), 4);
    return value;
  }
  void call(std::uint32_t number, std::vector<std::uint64_t> slots, std::uint64_t result) {
    const auto count = static_cast<std::uint16_t>(slots.size());
    slots.push_back(result);
    send(Kind::kCall, wire::Call{{}, number, count, 1}, slots);
  }
  void begin(std::vector<std::uint64_t> inputs) {
    send(Kind::kBegin, wire::Begin{{}, 7, {kSignature[0], kSignature[1]}, static_cast<std::uint32_t>(inputs.size()), 0},
         inputs);
  }
  void end(std::uint64_t output) {
    wire::Writer words;
    words.word(output);
    spec(words, Tag::kTensor, 0);
    send(Kind::kEnd, wire::End{{}, 7, 1, 0}, words.view());
  }
  Outcome replay(std::uint64_t input, std::uint64_t output) {
    send(Kind::kReplay, wire::Replay{{}, kSignature[0], 1, 1}, std::vector<std::uint64_t>{input, output});
    EXPECT_EQ(answers.kind(), Kind::kReplayed);
    return static_cast<Outcome>(answers.word(1));
  }

  // (x + w) · c, doubled where its first element is read as positive. Names 100 and up are scratch.
  float request(float x) {
    create(50);
    write(50, x);
    begin({50});
    create(100);
    write(100, 3);
    call(0, {50, held}, 101);
    call(1, {101, 100}, 102);
    std::uint64_t result = 102;
    if (read(102) > 0) call(0, {102, 102}, result = 103);
    end(result);
    const float value = read(result);
    for (std::uint64_t name : {100, 101, 102}) free(name);
    if (result == 103) free(103);
    free(50);
    return value;
  }
  static constexpr std::uint64_t kHeldWeight = 1;
  std::uint64_t held = kHeldWeight;

  float replayed(float x, Outcome expected = Outcome::kDone) {
    create(50);
    write(50, x);
    const Outcome outcome = replay(50, 60);
    EXPECT_EQ(outcome, expected);
    free(50);
    if (outcome != Outcome::kDone) return 0;
    const float value = read(60);
    free(60);
    return value;
  }
  void hold(float value) {
    create(held);
    write(held, value);
  }

  Recorder recorder;
  executor::Engine engine;
  Answers answers;
  executor::Heap::Handle heap;
  std::optional<executor::UseHeap> use;
};

class TapeReplay : public ::testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() { ASSERT_TRUE(executor::install_allocator(1 << 28).ok()); }
  const executor::Compute compute = accelerator::compute_at(GetParam());
};

TEST_P(TapeReplay, IsUsedOnceASecondRequestDidTheSame) {
  Client client(compute);
  client.hold(2);
  EXPECT_EQ(client.replayed(5, Outcome::kNoTape), 0);
  EXPECT_EQ(client.request(5), 42);
  client.replayed(5, Outcome::kNoTape);
  // The values differ, but not the guard's: the tape of the first is not the second's.
  EXPECT_EQ(client.request(5), 42);
  ASSERT_EQ(client.recorder.info().size(), 1u);
  EXPECT_EQ(client.recorder.info()[0].tapes, 1u) << client.recorder.info()[0].refused;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(client.replayed(5), 42);
  const auto stats = client.recorder.info()[0].stats;
  // Only memory of our own allocator is planned.
  EXPECT_EQ(stats.planned_blocks > 0, compute.host());
  EXPECT_EQ(stats.arena_bytes > 0, compute.host());
  EXPECT_EQ(stats.replays, 6u) << "the comparison and five";
}

TEST_P(TapeReplay, EveryValueReadBackIsAGuardAndBranchesHaveTheirOwnTapes) {
  Client client(compute);
  client.hold(2);
  for (int i = 0; i < 2; ++i) client.request(5);
  client.replayed(6, Outcome::kGuardMissed);
  client.replayed(-5, Outcome::kGuardMissed);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(client.request(-5), -9);
  EXPECT_EQ(client.recorder.info()[0].tapes, 2u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.replayed(5), 42);
    EXPECT_EQ(client.replayed(-5), -9);
  }
}

TEST_P(TapeReplay, WhatTheSessionHoldsIsReadAnewAndItsEndEndsTheTape) {
  Client client(compute);
  client.hold(2);
  for (int i = 0; i < 2; ++i) client.request(-5);
  client.write(Client::kHeldWeight, 2);
  EXPECT_EQ(client.replayed(-5), -9);
  client.free(Client::kHeldWeight);
  client.replayed(-5, Outcome::kNoTape);
}

TEST_P(TapeReplay, ASavedTapeRunsInAnotherSession) {
  Client client(compute);
  client.hold(2);
  for (int i = 0; i < 2; ++i) client.request(5);
  const auto files = client.recorder.save(kSignature);
  ASSERT_TRUE(files.ok()) << files.status().describe();
  Client other(compute);
  ASSERT_TRUE(other.recorder.load(files.value()[0]).ok());
  EXPECT_EQ(other.replayed(5), 42);
  // What the session changed since is no constant of the tape.
  client.write(Client::kHeldWeight, 9);
  EXPECT_EQ(client.recorder.save(kSignature).status().code(), Code::kInvalid);
  RecorderOptions newer;
  newer.origin.torch_version = "9.9.9";
  Client elsewhere(compute, newer);
  EXPECT_EQ(elsewhere.recorder.load(files.value()[0]).code(), Code::kMismatch);
}

// Sessions of one version, which share a folder.
class TapeSessions : public TapeReplay {
 protected:
  TapeSessions() : folder(std::filesystem::temp_directory_path() / ("sessions-" + std::to_string(::getpid()))) {
    std::filesystem::create_directory(folder);
    options.candidates = folder.string();
  }
  ~TapeSessions() override { std::filesystem::remove_all(folder); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
  }

  const std::filesystem::path folder;
  RecorderOptions options;
};

TEST_P(TapeSessions, ARequestOfAnEarlierSessionIsTheFirstOfTwo) {
  {
    Client client(compute, options);
    client.hold(2);
    EXPECT_EQ(client.request(5), 42);
    client.free(client.held);
  }
  EXPECT_EQ(files(), 1u);
  Client client(compute, options);
  client.held = 7;  // another name, and the same in it
  client.hold(2);
  client.replayed(5, Outcome::kNoTape);
  EXPECT_EQ(client.request(5), 42);
  ASSERT_EQ(client.recorder.info()[0].tapes, 1u) << client.recorder.info()[0].refused;
  EXPECT_EQ(client.replayed(5), 42);
  client.replayed(-5, Outcome::kGuardMissed);
  const auto saved = client.recorder.save(kSignature);
  ASSERT_TRUE(saved.ok()) << saved.status().describe();
  EXPECT_EQ(files(), 1u) << "until the tape is where it lasts, the next session has to find it";
  client.recorder.saved(kSignature);
  EXPECT_EQ(files(), 0u);
}

TEST_P(TapeSessions, WhatDidSomethingElseInAnEarlierSessionIsNotTheFirstOfTwo) {
  {
    Client client(compute, options);
    client.hold(3);
    client.request(5);
  }
  Client client(compute, options);
  client.hold(2);
  EXPECT_EQ(client.request(5), 42);
  EXPECT_EQ(client.recorder.info()[0].tapes, 0u) << "it holds other contents";
  EXPECT_EQ(client.request(5), 42);
  EXPECT_EQ(client.recorder.info()[0].tapes, 1u) << client.recorder.info()[0].refused;
  EXPECT_EQ(client.replayed(5), 42);
}

TEST_P(TapeSessions, WhatTheSessionChangedSinceWasKeptAsItWas) {
  {
    Client client(compute, options);
    client.hold(2);
    client.request(5);
    client.write(client.held, 9);
  }
  Client client(compute, options);
  client.hold(2);
  client.request(5);
  EXPECT_EQ(client.recorder.info()[0].tapes, 1u);
  EXPECT_EQ(client.replayed(5), 42);
}

TEST_P(TapeSessions, OfOneSignatureAFewAreKept) {
  for (int i = 0; i < 8; ++i) {
    Client client(compute, options);
    client.hold(static_cast<float>(i + 1));
    client.request(5);
  }
  EXPECT_LE(files(), kMaxCandidates);
  Client client(compute, options);
  client.hold(8);
  client.request(5);
  EXPECT_EQ(client.recorder.info()[0].tapes, 1u) << "the newest is there";
}

TEST_P(TapeSessions, ACandidateIsNeverReplayed) {
  {
    Client client(compute, options);
    client.hold(2);
    client.request(5);
  }
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const auto bytes = read_file(file.path().string(), kMaxKeptBytes);
    ASSERT_TRUE(bytes.ok());
    Client client(compute, options);
    EXPECT_EQ(client.recorder.load(bytes.value()).code(), Code::kMismatch);
    client.replayed(5, Outcome::kNoTape);
  }
}

TEST_P(TapeReplay, ATapeThatChangesWeightsIsNoTape) {
  Client client(compute);
  client.hold(2);
  for (int i = 0; i < 2; ++i) client.request(5);
  const auto files = client.recorder.save(kSignature);
  ASSERT_TRUE(files.ok()) << files.status().describe();
  auto tape = load(files.value()[0]);
  ASSERT_TRUE(tape.ok()) << tape.status().describe();
  tape.value().origin.model_bytes = 4;
  tape.value().places.push_back({Class::kWeight, false, 0, 4});
  EXPECT_TRUE(check(tape.value()).ok()) << check(tape.value()).describe();
  tape.value().places.back().written = true;
  EXPECT_EQ(save(tape.value()).status().code(), Code::kInvalid);
}

TEST_P(TapeReplay, RehearsingATapeLeavesNothingBehind) {
  Client client(compute);
  client.create(50);
  client.write(50, 0.5);
  for (int i = 0; i < 2; ++i) {
    client.begin({50});
    client.send(Kind::kSeed, wire::Seed{{}, 0, 0, 1234});
    client.call(2, {50}, 101);
    client.end(101);
    client.free(101);
  }
  const auto files = client.recorder.save(kSignature);
  ASSERT_TRUE(files.ok()) << files.status().describe();
  auto tape = load(files.value()[0]);
  ASSERT_TRUE(tape.ok());
  auto player = Player::prepare(std::move(tape).value(), weights_at(wire::kModelBase, 0, compute), compute);
  ASSERT_TRUE(player.ok()) << player.status().describe();
  auto shared = at::globalContext().defaultGenerator(compute.device());
  const at::Tensor before = shared.get_state();
  const auto live = client.heap->stats().live_bytes;
  const auto blocks = accelerator::live_blocks();
  player.value()->rehearse(nullptr);
  EXPECT_TRUE(shared.get_state().equal(before)) << "random numbers that others draw next";
  EXPECT_EQ(client.heap->stats().live_bytes, live);
  EXPECT_EQ(accelerator::live_blocks(), blocks);
  EXPECT_EQ(player.value()->stats().replays, 0u);
  executor::Generators generators(compute.device());
  const auto input = client.engine.storage(50);
  ASSERT_TRUE(input.ok());
  auto replayed = player.value()->run(std::vector<c10::Storage>{input.value()}, {generators});
  ASSERT_TRUE(replayed.ok()) << replayed.status().describe();
  EXPECT_FALSE(replayed.value().missed);
}

TEST_P(TapeReplay, WhatCannotBeTapedSaysWhy) {
  Client client(compute);
  client.hold(2);
  auto draws = [&](bool seeded) {
    client.create(50);
    client.write(50, 0.5);
    client.begin({50});
    if (seeded) client.send(Kind::kSeed, wire::Seed{{}, 0, 0, 1234});
    client.call(2, {50}, 101);
    client.end(101);
    client.free(101);
    client.free(50);
  };
  draws(false);
  EXPECT_NE(client.recorder.info()[0].refused.find("aten::bernoulli drew random numbers"), std::string::npos);
  for (int i = 0; i < 2; ++i) draws(true);
  EXPECT_EQ(client.recorder.info()[0].tapes, 1u) << client.recorder.info()[0].refused;
}

TEST_P(TapeReplay, AGuardBehindAChangeOfAnInputIsRefused) {
  Client client(compute);
  client.create(50);
  client.begin({50});
  client.write(50, 1);
  client.read(50);
  client.end(50);
  EXPECT_NE(client.recorder.info()[0].refused.find("could not be taken back"), std::string::npos);
  client.begin({50, 50});
  client.end(50);
  EXPECT_NE(client.recorder.info()[0].refused.find("share a storage"), std::string::npos);
}

// Weights that arrive while a replay runs: what it reads is waited for, and filled in by whoever is waited for.
class Arriving final : public executor::Residency {
 public:
  explicit Arriving(const accelerator::Bytes& weights) : weights_(weights) {}
  bool all_ready() const override { return waited > 0; }
  Status wait_ready(std::uint64_t, std::uint64_t bytes) override {
    const std::vector<float> values(bytes / 4, 2);
    weights_.put(std::as_bytes(std::span(values)));
    ++waited;
    return {};
  }
  Status wait_rows(std::uint64_t, std::uint64_t, std::span<const std::int64_t>) override { return {}; }
  int waited = 0;

 private:
  const accelerator::Bytes& weights_;
};

TEST_P(TapeReplay, AReplayWaitsForTheWeightsThatItReads) {
  const accelerator::Bytes weights(GetParam(), kBytes);
  const std::vector<float> values(kElements, 2);
  weights.put(std::as_bytes(std::span(values)));
  RecorderOptions options;
  options.origin.model_base = weights.address();
  options.origin.model_bytes = kBytes;
  Client client(compute, options);
  ASSERT_TRUE(client.engine.add_range({weights.address(), kBytes, false}).ok());
  client.create(weights.address());
  for (int i = 0; i < 2; ++i) {
    client.create(50);
    client.write(50, 5);
    client.begin({50});
    client.call(0, {50, weights.address()}, 101);
    client.end(101);
    EXPECT_EQ(client.read(101), 7);
    client.free(101);
    client.free(50);
  }
  const auto files = client.recorder.save(kSignature);
  ASSERT_TRUE(files.ok()) << files.status().describe();
  weights.put(std::vector<std::byte>(kBytes));
  Arriving arriving(weights);
  Shelf shelf(options.origin, &arriving, compute);
  ASSERT_TRUE(shelf.load(files.value()[0], weights_at(weights.address(), kBytes, compute)).ok());
  const c10::Storage input = compute.make_storage(kBytes);
  const std::vector<float> five(kElements, 5);
  ASSERT_TRUE(compute.write(input, 0, std::as_bytes(std::span(five))).ok());
  for (int i = 0; i < 3; ++i) {
    const auto played = shelf.replay(kSignature, std::vector<c10::Storage>{input});
    ASSERT_TRUE(played.ok()) << played.status().describe();
    ASSERT_EQ(played.value().outcome, Outcome::kDone);
    std::vector<float> output(kElements);
    ASSERT_TRUE(compute.read(played.value().outputs[0], 0, std::as_writable_bytes(std::span(output))).ok());
    EXPECT_EQ(output, std::vector<float>(kElements, 7));
  }
  EXPECT_EQ(arriving.waited, 1);
}

class StandInReplay : public TapeReplay {};

TEST_P(StandInReplay, ReplayingWaitsForTheDeviceAtGuardsOnly) {
  Client client(compute);
  client.hold(2);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(client.request(5), 42);
  client.create(50);
  client.write(50, 5);
  const auto before = accelerator::synchronisations();
  EXPECT_EQ(client.replay(50, 60), Outcome::kDone);
  // One value is read back; constants are on the device already.
  EXPECT_EQ(accelerator::synchronisations(), before + 1);
  EXPECT_EQ(client.read(60), 42);
}

TEST_P(TapeReplay, ATapeOfAnotherTypeOfDeviceIsNotReplayed) {
  Client client(compute);
  client.hold(2);
  for (int i = 0; i < 2; ++i) client.request(5);
  const auto files = client.recorder.save(kSignature);
  ASSERT_TRUE(files.ok());
  // As versions of a tape say it: one of another type of device is not replayed.
  RecorderOptions elsewhere;
  elsewhere.origin.device = "another";
  Client other(compute, elsewhere);
  EXPECT_EQ(other.recorder.load(files.value()[0]).code(), Code::kMismatch);
}

INSTANTIATE_TEST_SUITE_P(Everywhere, TapeReplay, testing::ValuesIn(accelerator::places()),
                         accelerator::name_of_place);
INSTANTIATE_TEST_SUITE_P(Everywhere, TapeSessions, testing::ValuesIn(accelerator::places()),
                         accelerator::name_of_place);
INSTANTIATE_TEST_SUITE_P(Everywhere, StandInReplay, testing::Values("stand_in"), accelerator::name_of_place);

}  // namespace
}  // namespace rouse::tape
