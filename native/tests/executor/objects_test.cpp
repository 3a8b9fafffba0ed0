// Quantised tensors and objects in messages of a client that may be broken or hostile; that they compute what they
// should is tested from Python.
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "places.h"
#include "rouse/executor/engine.h"

namespace rouse::executor {
namespace {

using wire::Kind;
using wire::Tag;

constexpr const char* kLinear = "__torch__.torch.classes.quantized.LinearPackedParamsBase";
constexpr std::uint8_t kInt8 = static_cast<std::uint8_t>(c10::ScalarType::QInt8);

class Answers final : public Responder {
 public:
  Status send(std::span<const std::byte> head, std::span<const std::byte> body) override {
    std::memcpy(&last, head.data(), sizeof(last));
    text.assign(reinterpret_cast<const char*>(body.data()), body.size());
    return {};
  }
  wire::Header last{};
  std::string text;
};

// A scheme, an axis and how many channels there are; then words.
std::uint64_t scheme(std::uint8_t which, std::uint8_t axis, std::uint32_t channels) {
  return which | std::uint64_t{axis} << 8 | std::uint64_t{channels} << 32;
}
std::uint64_t real(double value) { return std::bit_cast<std::uint64_t>(value); }

class ObjectsTest : public ::testing::Test {
 protected:
  explicit ObjectsTest(const Compute& compute = {}) : engine(EngineOptions{.max_bytes = 1 << 20, .compute = compute}) {}
  void SetUp() override { ASSERT_TRUE(send(Kind::kCreate, wire::Create{{}, 1, 64}).ok()); }

  template <typename T>
  Status send(Kind kind, T head, const wire::Writer& body = {}, std::uint16_t flags = 0) {
    wire::Writer message;
    head.header = {static_cast<std::uint32_t>(sizeof(T) + body.size_bytes()), static_cast<std::uint16_t>(kind), flags};
    message.head(head);
    message.bytes(body.as_bytes());
    return engine.handle(message.as_bytes(), answers);
  }
  // Eight by four numbers, quantised as `words` say.
  static void matrix(wire::Writer& items, std::vector<std::uint64_t> words, std::uint8_t dtype = kInt8,
                     std::uint8_t flags = wire::kQuantized) {
    items.item(Tag::kTensor, 0, dtype, flags, 2);
    for (const std::uint64_t word : {0, 8, 4, 4, 1}) items.word(word);
    for (const auto word : words) items.word(word);
  }
  Status dequantize(std::vector<std::uint64_t> words, std::uint8_t dtype = kInt8,
                    std::uint8_t flags = wire::kQuantized) {
    wire::Writer arguments, body;
    matrix(arguments, std::move(words), dtype, flags);
    body.text("aten::dequantize");
    body.text("self");
    body.bytes(arguments.as_bytes());
    return send(Kind::kTemplate,
                wire::Template{{}, 0, 16, 4, static_cast<std::uint32_t>(arguments.size_bytes()), 0}, body);
  }
  Status object(std::uint32_t number, const wire::Writer& state, const std::string& name = kLinear,
                std::vector<std::uint64_t> slots = {1}, const std::string& made = "18PackedLinearWeight") {
    wire::Writer body;
    body.text(name);
    body.text(made);
    body.bytes(state.as_bytes());
    for (const auto slot : slots) body.word(slot);
    return send(Kind::kObject,
                wire::Object{{},
                             number,
                             static_cast<std::uint16_t>(name.size()),
                             static_cast<std::uint16_t>(made.size()),
                             static_cast<std::uint32_t>(state.size_bytes()),
                             static_cast<std::uint32_t>(slots.size())},
                body);
  }
  static wire::Writer weight() {
    wire::Writer state;
    state.item(Tag::kTuple, 2);
    matrix(state, {scheme(0, 0, 0), real(0.1), 0});
    state.item(Tag::kNone);
    return state;
  }
  // An operator that takes object `number`, called: what is answered.
  Kind unpack(std::uint32_t number) {
    wire::Writer arguments, body;
    arguments.item(Tag::kObject, number);
    body.text("quantized::linear_unpack");
    body.bytes(arguments.as_bytes());
    EXPECT_TRUE(send(Kind::kTemplate, wire::Template{{}, 1, 24, 0, 8, 0}, body).ok());
    wire::Writer names;
    names.word(100);
    EXPECT_TRUE(send(Kind::kCall, wire::Call{{}, 1, 0, 1}, names, wire::kCallLearn).ok());
    return static_cast<Kind>(answers.last.kind);
  }

  const c10::InferenceMode inference;
  Engine engine;
  Answers answers;
};

// On a device whose memory this process may not touch.
class ObjectsElsewhereTest : public ObjectsTest {
 protected:
  ObjectsElsewhereTest() : ObjectsTest(accelerator::compute_at("stand_in")) {}
};

TEST_F(ObjectsElsewhereTest, NothingIsPackedThatTheHostCannotRead) {
  ASSERT_TRUE(object(0, weight()).ok());
  EXPECT_EQ(unpack(0), Kind::kError);
  EXPECT_NE(answers.text.find("packed weights compute on the CPU"), std::string::npos) << answers.text;
}

TEST_F(ObjectsTest, AQuantisationHasToFitItsTensor) {
  EXPECT_TRUE(dequantize({scheme(0, 0, 0), real(0.1), 3}).ok());
  std::vector<std::uint64_t> channels{scheme(1, 1, 4)};
  for (int i = 0; i < 4; ++i) channels.push_back(real(0.1));
  for (std::uint64_t i = 0; i < 4; ++i) channels.push_back(i);
  EXPECT_TRUE(dequantize(channels).ok());
  channels[0] = scheme(1, 0, 4);  // as many as the other axis has
  EXPECT_EQ(dequantize(channels).code(), Code::kInvalid);
  channels[0] = scheme(1, 2, 4);  // no such axis
  EXPECT_EQ(dequantize(channels).code(), Code::kInvalid);
  channels[0] = scheme(1, 1, 1u << 31);  // more than there are words
  EXPECT_EQ(dequantize(channels).code(), Code::kInvalid);
  EXPECT_EQ(dequantize({scheme(0, 0, 0), real(0.1), std::uint64_t{1} << 40}).code(), Code::kInvalid);  // zero point
  EXPECT_EQ(dequantize({scheme(7, 0, 0), real(0.1), 0}).code(), Code::kInvalid);                       // no such scheme
  EXPECT_EQ(dequantize({scheme(0, 0, 0), real(0.1)}).code(), Code::kInvalid);
  EXPECT_EQ(dequantize({}).code(), Code::kInvalid);
  EXPECT_EQ(dequantize({}, kInt8, 0).code(), Code::kInvalid);  // a dtype of quantised tensors alone
  const std::uint8_t negative = wire::kQuantized | wire::kNegative;  // its kernels would ask each other for ever
  EXPECT_EQ(dequantize({scheme(0, 0, 0), real(0.1), 3}, kInt8, negative).code(), Code::kInvalid);
  const auto half_bytes = static_cast<std::uint8_t>(c10::ScalarType::QUInt4x2);
  EXPECT_EQ(dequantize({scheme(0, 0, 0), real(0.1), 3}, half_bytes).code(), Code::kInvalid);
  const auto plain = static_cast<std::uint8_t>(c10::ScalarType::Float);
  EXPECT_EQ(dequantize({scheme(0, 0, 0), real(0.1), 3}, plain).code(), Code::kInvalid);
}

TEST_F(ObjectsTest, ADtypeThatIsAnArgumentIsOne) {
  const auto quantize = [&](std::uint64_t dtype) {
    wire::Writer arguments, body;
    arguments.item(Tag::kTensor, 0, static_cast<std::uint8_t>(c10::ScalarType::Float), 0, 1);
    for (const std::uint64_t word : {0, 4, 1}) arguments.word(word);
    arguments.item(Tag::kDouble);
    arguments.word(real(0.1));
    for (const std::uint64_t word : {std::uint64_t{0}, dtype}) {
      arguments.item(Tag::kInt);
      arguments.word(word);
    }
    body.text("aten::quantize_per_tensor");
    body.bytes(arguments.as_bytes());
    return send(Kind::kTemplate,
                wire::Template{{}, 0, 25, 0, static_cast<std::uint32_t>(arguments.size_bytes()), 0}, body);
  };
  EXPECT_TRUE(quantize(kInt8).ok());
  EXPECT_EQ(quantize(1000).code(), Code::kInvalid);
  EXPECT_EQ(quantize(~0ull).code(), Code::kInvalid);
}

TEST_F(ObjectsTest, AnObjectIsMadeOnceAndDroppedOnce) {
  ASSERT_TRUE(object(0, weight()).ok());
  EXPECT_EQ(unpack(0), Kind::kMeta) << answers.text;
  EXPECT_EQ(object(0, weight()).code(), Code::kInvalid);
  ASSERT_TRUE(send(Kind::kDropObject, wire::DropObject{{}, 0, 0}).ok());
  EXPECT_EQ(send(Kind::kDropObject, wire::DropObject{{}, 0, 0}).code(), Code::kInvalid);
  wire::Writer names;
  names.word(200);
  EXPECT_EQ(send(Kind::kCall, wire::Call{{}, 1, 0, 1}, names, wire::kCallLearn).code(), Code::kInvalid)
      << "its template went with it";
}

TEST_F(ObjectsTest, EndsTheSessionForWhatNoClientSends) {
  wire::Writer state;
  EXPECT_EQ(object(0, state).code(), Code::kInvalid);
  EXPECT_EQ(object(0, weight(), kLinear, {}).code(), Code::kInvalid);   // too few storages
  EXPECT_EQ(object(0, weight(), kLinear, {7}).code(), Code::kInvalid);  // one that is not there
  state = weight();
  state.item(Tag::kNone);  // more than its state has
  EXPECT_EQ(object(0, state).code(), Code::kInvalid);
  state.clear();
  state.item(Tag::kTuple, 3);
  EXPECT_EQ(object(0, state).code(), Code::kInvalid);
  ASSERT_TRUE(send(Kind::kCreate, wire::Create{{}, 2, 16}).ok());
  EXPECT_EQ(object(0, weight(), kLinear, {2}).code(), Code::kInvalid);  // past its end
}

TEST_F(ObjectsTest, OneThatCannotBeMadeFailsTheCallsThatTakeIt) {
  ASSERT_TRUE(object(0, weight(), "__torch__.torch.classes.c10d.Store").ok());
  EXPECT_EQ(unpack(0), Kind::kError);
  EXPECT_NE(answers.text.find("c10d.Store"), std::string::npos) << answers.text;
  ASSERT_TRUE(object(1, weight(), kLinear, {1}, "9NotPacked").ok());
  EXPECT_EQ(unpack(1), Kind::kError);
  EXPECT_NE(answers.text.find("NotPacked"), std::string::npos) << answers.text;
  // What a class does not take.
  wire::Writer state;
  state.item(Tag::kTuple, 2);
  state.item(Tag::kTensor, 0, static_cast<std::uint8_t>(c10::ScalarType::Long), 0, 1);
  for (const std::uint64_t word : {0, 4, 1}) state.word(word);
  state.item(Tag::kNone);
  ASSERT_TRUE(object(2, state).ok());
  EXPECT_EQ(unpack(2), Kind::kError);
  ASSERT_TRUE(object(3, weight()).ok());
  EXPECT_EQ(unpack(3), Kind::kMeta) << answers.text;
}

}  // namespace
}  // namespace rouse::executor
