// The engine against messages that a broken or hostile client could send, on the CPU and on a device whose memory this
// process may not touch; operators are tested from Python.
#include "rouse/executor/engine.h"

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "places.h"

namespace rouse::executor {
namespace {

using wire::Kind;
using wire::Tag;

class Answers final : public Responder {
 public:
  Status send(std::span<const std::byte> head, std::span<const std::byte> body) override {
    std::memcpy(&last, head.data(), sizeof(last));
    if (static_cast<Kind>(last.kind) == Kind::kError) {
      std::memcpy(&error, head.data(), sizeof(error));
      text.assign(reinterpret_cast<const char*>(body.data()), body.size());
    }
    data.assign(body.begin(), body.end());
    return {};
  }
  Kind kind() const { return static_cast<Kind>(last.kind); }
  wire::Header last{};
  wire::Error error{};
  std::string text;
  std::vector<std::byte> data;
};

// Weights that have arrived, or not.
class Arriving final : public Residency {
 public:
  bool all_ready() const override { return all; }
  Status wait_ready(std::uint64_t address, std::uint64_t bytes) override {
    waits.emplace_back(address, bytes);
    return answer;
  }
  Status wait_rows(std::uint64_t table, std::uint64_t row_bytes, std::span<const std::int64_t> numbers) override {
    waits.emplace_back(table, row_bytes);
    rows.assign(numbers.begin(), numbers.end());
    return answer;
  }
  bool all = true;
  Status answer;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> waits;
  std::vector<std::int64_t> rows;
};

class EngineTest : public ::testing::TestWithParam<std::string> {
 protected:
  template <typename T>
  Status send(Kind kind, T head, const wire::Writer& body = {}, std::uint16_t flags = 0) {
    wire::Writer message;
    head.header = {static_cast<std::uint32_t>(sizeof(T) + body.size_bytes()), static_cast<std::uint16_t>(kind), flags};
    message.head(head);
    message.bytes(body.as_bytes());
    return engine.handle(message.as_bytes(), answers);
  }
  Status create(std::uint64_t name, std::uint64_t bytes) { return send(Kind::kCreate, wire::Create{{}, name, bytes}); }
  Status add(std::uint32_t number, std::int64_t size, const char* name = "aten::relu_") {
    wire::Writer arguments, body;
    arguments.item(Tag::kTensor, 0, static_cast<std::uint8_t>(c10::ScalarType::Float), 0, 1);
    for (const std::int64_t word : {std::int64_t{0}, size, std::int64_t{1}})
      arguments.word(static_cast<std::uint64_t>(word));
    body.text(name);
    body.bytes(arguments.as_bytes());
    return send(Kind::kTemplate,
                wire::Template{{},
                               number,
                               static_cast<std::uint16_t>(std::strlen(name)),
                               0,
                               static_cast<std::uint32_t>(arguments.size_bytes()),
                               0},
                body);
  }
  Status call(std::uint32_t number, std::uint64_t slot, std::uint16_t flags = wire::kCallLearn | wire::kCallKeep) {
    wire::Writer names;
    names.word(slot);
    if (flags & wire::kCallLearn) names.word(100);
    return send(Kind::kCall, wire::Call{{}, number, 1, static_cast<std::uint16_t>(flags & wire::kCallLearn)}, names,
                flags);
  }
  Status sync() { return send(Kind::kSync, wire::Sync{{}, 5}); }
  Status free(std::uint64_t name) {
    wire::Writer message;
    message.head(wire::Header{16, static_cast<std::uint16_t>(Kind::kFree), 0});
    message.word(name);
    return engine.handle(message.as_bytes(), answers);
  }
  void write(std::uint64_t name, std::vector<float> values) {
    wire::Writer data;
    data.bytes(std::as_bytes(std::span(values)));
    ASSERT_TRUE(send(Kind::kWrite, wire::Span{{}, name, 0, 4 * values.size()}, data).ok());
  }
  std::vector<float> read(std::uint64_t name, std::size_t count = 4) {
    std::vector<float> values(count);
    EXPECT_TRUE(send(Kind::kRead, wire::Span{{}, name, 0, 4 * count}).ok());
    EXPECT_EQ(answers.kind(), Kind::kData) << answers.text;
    if (answers.data.size() == 4 * count) std::memcpy(values.data(), answers.data.data(), 4 * count);
    return values;
  }
  // Of four floats in storage 1: into storages 100 and 101.
  Status sort() {
    ROUSE_RETURN_IF_ERROR(taught("aten::sort", [](wire::Writer& arguments) {
      arguments.item(Tag::kInt);
      arguments.word(0);
      arguments.item(Tag::kBool, 0);
    }));
    return call(0, 1);
  }
  Status bernoulli() {
    return taught("aten::bernoulli", [](wire::Writer& arguments) { arguments.item(Tag::kNone); });
  }
  // Template 0: an operator of four floats and what `more` adds.
  template <typename More>
  Status taught(const char* name, const More& more) {
    wire::Writer arguments, body;
    arguments.item(Tag::kTensor, 0, static_cast<std::uint8_t>(c10::ScalarType::Float), 0, 1);
    for (const std::uint64_t word : {0, 4, 1}) arguments.word(word);
    more(arguments);
    body.text(name);
    body.bytes(arguments.as_bytes());
    wire::Template head{};
    head.name_bytes = static_cast<std::uint16_t>(std::strlen(name));
    head.argument_bytes = static_cast<std::uint32_t>(arguments.size_bytes());
    return send(Kind::kTemplate, head, body);
  }

  const c10::InferenceMode inference;
  Arriving arriving;
  const Compute compute = accelerator::compute_at(GetParam());
  Engine engine{EngineOptions{.max_bytes = 1 << 20, .residency = &arriving, .compute = compute}};
  Answers answers;
};

// A model's range in the device's memory.
class WeightsTest : public EngineTest {
 protected:
  static constexpr std::size_t kWeights = 8;
  void SetUp() override {
    const std::vector<float> values(kWeights, -1);
    weights.put(std::as_bytes(std::span(values)));
    ASSERT_TRUE(engine.add_range({base, kBytes, false}).ok());
    ASSERT_TRUE(create(base, kBytes).ok());
  }
  bool unchanged() const {
    const std::vector<float> values(kWeights, -1);
    const auto expected = std::as_bytes(std::span(values));
    const auto found = weights.get();
    return std::equal(expected.begin(), expected.end(), found.begin(), found.end());
  }
  void expect_refused(const char* operation) {
    EXPECT_EQ(answers.kind(), Kind::kError);
    EXPECT_EQ(answers.error.code, static_cast<std::uint32_t>(Code::kRefused));
    EXPECT_NE(answers.text.find(operation), std::string::npos) << answers.text;
    EXPECT_TRUE(unchanged());
    ASSERT_TRUE(sync().ok());
    EXPECT_EQ(answers.kind(), Kind::kDone) << "the session goes on";
  }

  static constexpr std::size_t kBytes = kWeights * sizeof(float);
  const accelerator::Bytes weights{GetParam(), kBytes};
  const std::uint64_t base = weights.address();
};

TEST_P(EngineTest, RunsWhatItWasTaught) {
  ASSERT_TRUE(create(1, 16).ok());
  ASSERT_TRUE(add(0, 4).ok());
  ASSERT_TRUE(call(0, 1).ok());
  EXPECT_EQ(answers.kind(), Kind::kMeta) << answers.text;
  ASSERT_TRUE(call(0, 1, 0).ok());
  ASSERT_TRUE(sync().ok());
  EXPECT_EQ(answers.kind(), Kind::kDone) << answers.text;
}

TEST_P(EngineTest, EndsTheSessionForWhatNoClientSends) {
  ASSERT_TRUE(create(1, 16).ok());
  ASSERT_TRUE(add(0, 4).ok());
  ASSERT_TRUE(add(1, 5).ok());
  EXPECT_EQ(call(0, 2).code(), Code::kInvalid);                     // no such storage
  EXPECT_EQ(call(1, 1).code(), Code::kInvalid);                     // past the storage's end
  EXPECT_EQ(call(9, 1).code(), Code::kInvalid);                     // no such template
  EXPECT_EQ(call(0, 1, 0).code(), Code::kInvalid);                  // results not known yet
  EXPECT_EQ(create(wire::kMaxStorages, 8).code(), Code::kInvalid);  // a number too high
  EXPECT_EQ(create(wire::kModelBase, 8).code(), Code::kInvalid);    // an address outside of all ranges
  EXPECT_EQ(add(wire::kMaxTemplates, 4).code(), Code::kInvalid);    // a number too high
  EXPECT_EQ(add(2, -1).code(), Code::kInvalid);                     // a size that cannot be
  EXPECT_EQ(add(2, std::int64_t{1} << 62).code(), Code::kInvalid);  // one that overflows
  EXPECT_EQ(send(Kind::kRead, wire::Span{{}, 1, 8, 16}).code(), Code::kInvalid);
  EXPECT_EQ(send(Kind::kRead, wire::Span{{}, 1, ~0ull, 16}).code(), Code::kInvalid);
  EXPECT_EQ(send(Kind::kWrite, wire::Span{{}, 1, 0, 4096}).code(), Code::kInvalid);
  EXPECT_EQ(send(static_cast<Kind>(99), wire::Sync{}).code(), Code::kInvalid);
}

TEST_P(EngineTest, AnUnknownOperatorIsAnErrorOfTheCallAndIsHeardOnce) {
  ASSERT_TRUE(create(1, 16).ok());
  ASSERT_TRUE(add(0, 4, "mine::unknown").ok());
  ASSERT_TRUE(call(0, 1).ok());
  EXPECT_EQ(answers.kind(), Kind::kError);
  EXPECT_NE(answers.text.find("mine::unknown"), std::string::npos);
  ASSERT_TRUE(sync().ok());
  EXPECT_EQ(answers.kind(), Kind::kDone);
  ASSERT_TRUE(add(1, 4, "aten::from_file").ok());
  ASSERT_TRUE(call(1, 1).ok());
  EXPECT_EQ(answers.kind(), Kind::kError);
}

TEST_P(EngineTest, KeepsToItsLimit) {
  ASSERT_TRUE(create(1, 1 << 19).ok());
  ASSERT_TRUE(create(2, 1 << 20).ok());
  EXPECT_EQ(engine.sticky().code(), Code::kExhausted);
  ASSERT_TRUE(sync().ok());
  EXPECT_EQ(answers.error.code, static_cast<std::uint32_t>(Code::kExhausted));
  EXPECT_EQ(engine.bytes(), 1u << 19);
}

TEST_P(WeightsTest, ARangeIsBoundInsideItOnly) {
  EXPECT_EQ(create(base + 8, kBytes).code(), Code::kInvalid);
  EXPECT_FALSE(engine.add_range({base + 8, 64, true}).ok());
}

TEST_P(WeightsTest, AnOperatorThatChangesAWeightIsAnErrorOfTheCall) {
  ASSERT_TRUE(add(0, 4).ok());
  ASSERT_TRUE(call(0, base).ok());  // relu_
  expect_refused("aten::relu_");
}

TEST_P(WeightsTest, AWriteToAWeightIsAnErrorOfTheNextSynchronisation) {
  wire::Writer body;
  body.word(0);
  ASSERT_TRUE(send(Kind::kWrite, wire::Span{{}, base, 0, 8}, body).ok());
  ASSERT_TRUE(sync().ok());
  expect_refused("aten::copy_");
}

TEST_P(WeightsTest, StatisticsOfBatchNormalisationAreChangedWhileTrainingOnly) {
  const auto tensor = [](wire::Writer& items, std::initializer_list<std::int64_t> sizes) {
    items.item(Tag::kTensor, 0, static_cast<std::uint8_t>(c10::ScalarType::Float), 0,
               static_cast<std::uint8_t>(sizes.size()));
    items.word(0);
    for (const auto size : sizes) items.word(static_cast<std::uint64_t>(size));
    for (std::size_t i = 1; i <= sizes.size(); ++i) items.word(i == sizes.size() ? 1 : 4);
  };
  ASSERT_TRUE(create(1, 32).ok());
  for (const bool training : {true, false}) {
    wire::Writer arguments, body, names;
    tensor(arguments, {2, 4});
    arguments.item(Tag::kNone);
    arguments.item(Tag::kNone);
    tensor(arguments, {4});
    tensor(arguments, {4});
    arguments.item(Tag::kBool, training ? 1 : 0);
    for (const double number : {0.1, 1e-5}) {
      arguments.item(Tag::kDouble);
      arguments.real(number);
    }
    body.text("aten::native_batch_norm");
    body.bytes(arguments.as_bytes());
    wire::Template head{};
    head.name_bytes = 23;
    head.argument_bytes = static_cast<std::uint32_t>(arguments.size_bytes());
    ASSERT_TRUE(send(Kind::kTemplate, head, body).ok());
    for (const std::uint64_t name : {std::uint64_t{1}, base, base, std::uint64_t{100}}) names.word(name);
    ASSERT_TRUE(send(Kind::kCall, wire::Call{{}, 0, 3, 1}, names, wire::kCallLearn).ok());
    if (training) {
      expect_refused("aten::native_batch_norm");
    } else {
      EXPECT_EQ(answers.kind(), Kind::kMeta) << answers.text;
    }
  }
}

TEST_P(WeightsTest, WeightsAreWaitedForUntilAllAreThere) {
  ASSERT_TRUE(add(0, 4, "aten::relu").ok());
  arriving.all = false;
  ASSERT_TRUE(call(0, base).ok());
  EXPECT_EQ(answers.kind(), Kind::kMeta) << answers.text;
  ASSERT_EQ(arriving.waits.size(), 1u);
  EXPECT_EQ(arriving.waits[0], std::make_pair(base, std::uint64_t{16})) << "what it reads, and no more";
  arriving.answer = Status(Code::kCancelled, "the swap was cancelled");
  ASSERT_TRUE(call(0, base).ok());
  EXPECT_EQ(answers.error.code, static_cast<std::uint32_t>(Code::kCancelled));
  EXPECT_NE(answers.text.find("aten::relu"), std::string::npos) << answers.text;
  ASSERT_TRUE(send(Kind::kRead, wire::Span{{}, base, 4, 8}).ok());
  EXPECT_EQ(answers.kind(), Kind::kError);
  EXPECT_EQ(arriving.waits.back(), std::make_pair(base + 4, std::uint64_t{8}));
  arriving.all = true;
  arriving.waits.clear();
  ASSERT_TRUE(call(0, base).ok());
  EXPECT_EQ(answers.kind(), Kind::kMeta) << answers.text;
  EXPECT_TRUE(arriving.waits.empty());
}

TEST_P(WeightsTest, AnEmbeddingWaitsForItsRows) {
  wire::Writer arguments, body, names, numbers;
  arguments.item(Tag::kTensor, 0, static_cast<std::uint8_t>(c10::ScalarType::Float), 0, 2);
  for (const std::uint64_t word : {0, 4, 2, 2, 1}) arguments.word(word);
  arguments.item(Tag::kTensor, 0, static_cast<std::uint8_t>(c10::ScalarType::Long), 0, 1);
  for (const std::uint64_t word : {0, 3, 1}) arguments.word(word);
  arguments.item(Tag::kInt);
  arguments.word(~std::uint64_t{0});
  arguments.item(Tag::kBool, 0);
  arguments.item(Tag::kBool, 0);
  body.text("aten::embedding");
  body.bytes(arguments.as_bytes());
  wire::Template head{};
  head.name_bytes = 15;
  head.argument_bytes = static_cast<std::uint32_t>(arguments.size_bytes());
  ASSERT_TRUE(send(Kind::kTemplate, head, body).ok());
  ASSERT_TRUE(create(1, 24).ok());
  const auto look_up = [&](std::initializer_list<std::uint64_t> rows) {
    wire::Writer data, call;
    for (const auto row : rows) data.word(row);
    EXPECT_TRUE(send(Kind::kWrite, wire::Span{{}, 1, 0, 24}, data).ok());
    for (const std::uint64_t name : {base, std::uint64_t{1}, std::uint64_t{100}}) call.word(name);
    EXPECT_TRUE(send(Kind::kCall, wire::Call{{}, 0, 2, 1}, call, wire::kCallLearn).ok());
  };
  arriving.all = false;
  look_up({3, 1, 3});
  EXPECT_EQ(answers.kind(), Kind::kMeta) << answers.text;
  EXPECT_EQ(arriving.rows, (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(arriving.waits.back(), std::make_pair(base, std::uint64_t{8}));
  // CUDA's kernels end the device's context for this.
  if (compute.device().is_cuda()) return;
  // A row that there is not is the operator's own error, whatever was waited for.
  look_up({3, 4, 0});
  EXPECT_EQ(answers.kind(), Kind::kError);
  EXPECT_NE(answers.text.find("IndexError"), std::string::npos) << answers.text;
  EXPECT_EQ(arriving.waits.back(), std::make_pair(base, std::uint64_t{32}));
}

TEST_P(EngineTest, WhatIsWrittenIsComputedWithAndReadBack) {
  ASSERT_TRUE(create(1, 16).ok());
  write(1, {-1, 2, -3, 4});
  EXPECT_EQ(read(1), (std::vector<float>{-1, 2, -3, 4}));
  ASSERT_TRUE(add(0, 4).ok());
  ASSERT_TRUE(call(0, 1).ok());  // relu_
  EXPECT_EQ(answers.kind(), Kind::kMeta) << answers.text;
  EXPECT_EQ(read(1), (std::vector<float>{0, 2, 0, 4}));
  ASSERT_TRUE(send(Kind::kResize, wire::Create{{}, 1, 32}).ok());
  EXPECT_EQ(read(1), (std::vector<float>{0, 2, 0, 4})) << "what fits in both sizes stays";
  EXPECT_EQ(engine.bytes(), 32u);
}

TEST_P(EngineTest, AnotherTensorOverAStorageIsAViewOfIt) {
  ASSERT_TRUE(create(1, 32).ok());
  write(1, {1, -2, 3, -4, 5, -6, 7, -8});
  // Every second element from the second on, in place.
  wire::Writer arguments, body;
  arguments.item(Tag::kTensor, 0, static_cast<std::uint8_t>(c10::ScalarType::Float), 0, 1);
  for (const std::uint64_t word : {1, 4, 2}) arguments.word(word);
  body.text("aten::neg_");
  body.bytes(arguments.as_bytes());
  wire::Template head{};
  head.name_bytes = 10;
  head.argument_bytes = static_cast<std::uint32_t>(arguments.size_bytes());
  ASSERT_TRUE(send(Kind::kTemplate, head, body).ok());
  ASSERT_TRUE(call(0, 1).ok());
  EXPECT_EQ(answers.kind(), Kind::kMeta) << answers.text;
  EXPECT_EQ(read(1, 8), (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST_P(EngineTest, ResultsInATupleAreStoragesOfTheirOwn) {
  ASSERT_TRUE(create(1, 16).ok());
  write(1, {3, 1, 4, 1});
  ASSERT_TRUE(sort().ok());
  EXPECT_EQ(answers.kind(), Kind::kMeta) << answers.text;
  EXPECT_EQ(read(100), (std::vector<float>{1, 1, 3, 4}));
  ASSERT_TRUE(send(Kind::kRead, wire::Span{{}, 101, 16, 8}).ok());
  EXPECT_EQ(std::to_integer<int>(answers.data[0]), 0) << "the third smallest was the first";
}

TEST_P(EngineTest, AResultWhoseShapeDependsOnDataSaysItsShape) {
  ASSERT_TRUE(create(1, 16).ok());
  write(1, {0, 5, 0, 6});
  ASSERT_TRUE(add(0, 4, "aten::nonzero").ok());
  ASSERT_TRUE(call(0, 1, wire::kCallLearn).ok());
  ASSERT_EQ(answers.kind(), Kind::kMeta) << answers.text;
  std::uint64_t rows;
  std::memcpy(&rows, answers.data.data() + 16, sizeof(rows));
  EXPECT_EQ(rows, 2u);
  ASSERT_TRUE(send(Kind::kRead, wire::Span{{}, 100, 8, 8}).ok());
  EXPECT_EQ(std::to_integer<int>(answers.data[0]), 3);
}

TEST_P(EngineTest, AnErrorOfAnOperatorIsItsClientsAndTheSessionGoesOn) {
  ASSERT_TRUE(create(1, 16).ok());
  ASSERT_TRUE(add(0, 4, "aten::bitwise_not").ok());
  ASSERT_TRUE(call(0, 1).ok());
  ASSERT_EQ(answers.kind(), Kind::kError);
  EXPECT_NE(answers.text.find("aten::bitwise_not"), std::string::npos) << answers.text;
  ASSERT_TRUE(add(1, 4, "aten::relu").ok());
  ASSERT_TRUE(call(1, 1).ok());
  EXPECT_EQ(answers.kind(), Kind::kMeta) << answers.text;
}

TEST_P(EngineTest, RandomNumbersAreThoseOfTheSeed) {
  std::vector<std::vector<float>> drawn;
  ASSERT_TRUE(create(1, 16).ok());
  ASSERT_TRUE(bernoulli().ok());
  for (const std::uint64_t seed : {7, 8, 7}) {
    write(1, {0.5, 0.5, 0.5, 0.5});
    ASSERT_TRUE(send(Kind::kSeed, wire::Seed{{}, 0, 0, seed}).ok());
    std::vector<float> all;
    for (int i = 0; i < 8; ++i) {
      ASSERT_TRUE(call(0, 1).ok());
      ASSERT_EQ(answers.kind(), Kind::kMeta) << answers.text;
      const auto some = read(100);
      all.insert(all.end(), some.begin(), some.end());
      ASSERT_TRUE(free(100).ok());
    }
    drawn.push_back(all);
  }
  EXPECT_EQ(drawn[0], drawn[2]);
  EXPECT_NE(drawn[0], drawn[1]);
}

class StandInTest : public EngineTest {};

TEST_P(StandInTest, AnEndedSessionLeavesNothingOnTheDevice) {
  const auto before = accelerator::live_blocks();
  {
    Engine other{EngineOptions{.max_bytes = 1 << 20, .compute = compute}};
    wire::Writer message;
    message.head(wire::Create{{24, static_cast<std::uint16_t>(Kind::kCreate), 0}, 1, 4096});
    ASSERT_TRUE(other.handle(message.as_bytes(), answers).ok());
    EXPECT_EQ(accelerator::live_blocks(), before + 1);
  }
  EXPECT_EQ(accelerator::live_blocks(), before);
}

TEST_P(StandInTest, OnlyWhoReadsWaitsForTheDevice) {
  ASSERT_TRUE(create(1, 16).ok());
  write(1, {-1, 2, -3, 4});
  ASSERT_TRUE(add(0, 4).ok());
  ASSERT_TRUE(call(0, 1).ok());
  const auto before = accelerator::synchronisations();
  const auto kernels = accelerator::kernels_run();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(call(0, 1, 0).ok());
  EXPECT_EQ(accelerator::kernels_run(), kernels + 10);
  EXPECT_EQ(accelerator::synchronisations(), before);
  read(1);
  EXPECT_EQ(accelerator::synchronisations(), before + 1);
  ASSERT_TRUE(sync().ok());
  EXPECT_EQ(accelerator::synchronisations(), before + 1) << "nothing was given to it since";
  ASSERT_TRUE(call(0, 1, 0).ok());
  ASSERT_TRUE(sync().ok());
  EXPECT_EQ(accelerator::synchronisations(), before + 2);
}

TEST_P(StandInTest, WhatFailsOnTheDeviceIsHeardAtTheNextSynchronisationWithItsOperator) {
  ASSERT_TRUE(create(1, 16).ok());
  ASSERT_TRUE(add(0, 4).ok());
  ASSERT_TRUE(call(0, 1).ok());
  ASSERT_TRUE(sync().ok());
  ASSERT_EQ(answers.kind(), Kind::kDone);
  accelerator::fail_next("an illegal address");
  ASSERT_TRUE(call(0, 1, 0).ok());
  EXPECT_TRUE(engine.sticky().ok()) << "nobody knows yet";
  ASSERT_TRUE(sync().ok());
  ASSERT_EQ(answers.kind(), Kind::kError);
  EXPECT_NE(answers.text.find("an illegal address; it happened on the device in aten::relu_"), std::string::npos)
      << answers.text;
  accelerator::fail_next("another address");
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(call(0, 1, 0).ok());
  ASSERT_TRUE(send(Kind::kRead, wire::Span{{}, 1, 0, 16}).ok());
  ASSERT_EQ(answers.kind(), Kind::kError);
  EXPECT_NE(answers.text.find("one of the last 3 operators, of which the latest was aten::relu_"), std::string::npos)
      << answers.text;
  ASSERT_TRUE(sync().ok());
  EXPECT_EQ(answers.kind(), Kind::kDone) << "the session goes on";
}

TEST_P(StandInTest, ResultsAreInTheSessionsAccount) {
  ASSERT_TRUE(create(1, 1 << 19).ok());
  ASSERT_TRUE(add(0, 1 << 17, "aten::relu").ok());
  ASSERT_TRUE(call(0, 1).ok());
  ASSERT_EQ(answers.kind(), Kind::kMeta) << answers.text;
  EXPECT_EQ(engine.bytes(), 1u << 20);
  ASSERT_TRUE(call(0, 1).ok());
  ASSERT_EQ(answers.kind(), Kind::kError);
  EXPECT_EQ(answers.error.code, static_cast<std::uint32_t>(Code::kExhausted));
  EXPECT_NE(answers.text.find("aten::relu"), std::string::npos) << answers.text;
}

TEST_P(StandInTest, AResultOnAnotherDeviceIsNone) {
  wire::Writer arguments, body, names;
  arguments.item(Tag::kIntList, 1);
  arguments.word(4);
  for (int i = 0; i < 2; ++i) arguments.item(Tag::kNone);
  arguments.item(Tag::kDevice, 1);  // the CPU
  for (int i = 0; i < 2; ++i) arguments.item(Tag::kNone);
  body.text("aten::empty");
  body.text("memory_format");
  body.bytes(arguments.as_bytes());
  wire::Template head{};
  head.name_bytes = 11;
  head.overload_bytes = 13;
  head.argument_bytes = static_cast<std::uint32_t>(arguments.size_bytes());
  ASSERT_TRUE(send(Kind::kTemplate, head, body).ok());
  names.word(100);
  ASSERT_TRUE(send(Kind::kCall, wire::Call{{}, 0, 0, 1}, names, wire::kCallLearn).ok());
  ASSERT_EQ(answers.kind(), Kind::kError);
  EXPECT_NE(answers.text.find("returns a tensor on cpu"), std::string::npos) << answers.text;
}

using accelerator::name_of_place;
INSTANTIATE_TEST_SUITE_P(Everywhere, EngineTest, testing::ValuesIn(accelerator::places()), name_of_place);
INSTANTIATE_TEST_SUITE_P(Everywhere, WeightsTest, testing::ValuesIn(accelerator::places()), name_of_place);
INSTANTIATE_TEST_SUITE_P(Everywhere, StandInTest, testing::Values("stand_in"), name_of_place);

}  // namespace
}  // namespace rouse::executor
