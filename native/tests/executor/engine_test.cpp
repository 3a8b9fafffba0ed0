// The engine against messages that a broken or hostile client could send; operators are tested from Python.
#include "rouse/executor/engine.h"

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cstring>

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

class EngineTest : public ::testing::Test {
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

  const c10::InferenceMode inference;
  Engine engine{EngineOptions{.max_bytes = 1 << 20}};
  Answers answers;
};

TEST_F(EngineTest, RunsWhatItWasTaught) {
  ASSERT_TRUE(create(1, 16).ok());
  ASSERT_TRUE(add(0, 4).ok());
  ASSERT_TRUE(call(0, 1).ok());
  EXPECT_EQ(answers.kind(), Kind::kMeta) << answers.text;
  ASSERT_TRUE(call(0, 1, 0).ok());
  ASSERT_TRUE(sync().ok());
  EXPECT_EQ(answers.kind(), Kind::kDone) << answers.text;
}

TEST_F(EngineTest, EndsTheSessionForWhatNoClientSends) {
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

TEST_F(EngineTest, AnUnknownOperatorIsAnErrorOfTheCallAndIsHeardOnce) {
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

TEST_F(EngineTest, KeepsToItsLimit) {
  ASSERT_TRUE(create(1, 1 << 19).ok());
  ASSERT_TRUE(create(2, 1 << 20).ok());
  EXPECT_EQ(engine.sticky().code(), Code::kExhausted);
  ASSERT_TRUE(sync().ok());
  EXPECT_EQ(answers.error.code, static_cast<std::uint32_t>(Code::kExhausted));
  EXPECT_EQ(engine.bytes(), 1u << 19);
}

TEST_F(EngineTest, ARangeIsBoundInsideItOnly) {
  alignas(64) static float weights[4];
  const auto base = reinterpret_cast<std::uint64_t>(weights);
  if (base < wire::kModelBase) GTEST_SKIP() << "this process's memory lies below the base of models";
  ASSERT_TRUE(engine.add_range({base, sizeof(weights), false}).ok());
  ASSERT_TRUE(create(base, 16).ok());
  EXPECT_EQ(create(base + 8, 16).code(), Code::kInvalid);
  ASSERT_TRUE(add(0, 4).ok());
  EXPECT_EQ(call(0, base).code(), Code::kRefused);  // relu_ writes
  EXPECT_FALSE(engine.add_range({base + 8, 64, true}).ok());
}

}  // namespace
}  // namespace rouse::executor
