// What other processes send: read as it should be, refused as it should be, and never a crash.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "core_messages.h"
#include "rouse/serve/frames.h"
#include "rouse/serve/protobuf.h"
#include "rouse/serve/rpc_error.h"
#include "rouse/serve/tensors.h"

namespace rouse::serve {
namespace {

std::string batch() {
  const std::vector<float> data(6, 1.5F);
  const std::vector<TensorView> tensors{
      {"a", "FP32", {2, 3}, std::as_bytes(std::span(data))},
      {"b", "INT8", {0, 7}, {}},
  };
  return write_tensors(tensors);
}

std::string execute() {
  return ProtoWriter().text(1, "attachment/7").text(2, "r").text(3, batch()).element(4, "logits").out();
}

TEST(ProtoReader, ReadsWhatTheWriterWrote) {
  const std::string message = ProtoWriter().varint(1, 1ull << 63).text(2, "text").number(3, -2.5).out();
  ProtoReader reader(as_bytes(message), "Test");
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.varint(), 1ull << 63);
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.text(), "text");
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.number(), -2.5);
  EXPECT_FALSE(reader.next());
  EXPECT_TRUE(reader.status().ok());
}

TEST(ProtoReader, NamesWhatIsWrong) {
  const auto fault = [](std::string_view bytes) {
    ProtoReader reader(as_bytes(bytes), "Test");
    while (reader.next()) (void)reader.text();
    return reader.status().text();
  };
  EXPECT_EQ(fault(std::string_view("\x0A\x05zz", 4)), "Test: field 1 runs past the end of the message");
  EXPECT_EQ(fault(std::string_view("\x08\x80", 2)), "Test: cut off within a number");
  EXPECT_EQ(fault(std::string_view("\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", 12)),
            "Test: a number is longer than ten bytes");
  EXPECT_EQ(fault(std::string_view("\x0B", 1)), "Test: wire type 3 in field 1");
  EXPECT_EQ(fault(std::string_view("\x02\x01", 2)), "Test: a tag names no field");
  EXPECT_EQ(fault(std::string_view("\x08\x01", 2)), "Test: field 1 has wire type 0 instead of 2");
}

TEST(ProtoReader, BoundsPackedNumbers) {
  const std::string message = ProtoWriter().packed(3, std::vector<int64_t>(100, 1)).out();
  ProtoReader reader(as_bytes(message), "Test");
  std::vector<uint64_t> numbers;
  ASSERT_TRUE(reader.next());
  reader.varints(numbers, 64);
  EXPECT_FALSE(reader.status().ok());
  EXPECT_TRUE(numbers.empty());
}

TEST(Tensors, TravelBothWays) {
  const std::string message = execute();
  Result<ExecuteRequest> read = read_execute(as_bytes(message));
  ASSERT_TRUE(read.ok()) << read.status().text();
  EXPECT_EQ(read.value().lease_id, "attachment/7");
  ASSERT_EQ(read.value().inputs.size(), 2U);
  EXPECT_EQ(read.value().inputs[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(read.value().inputs[1].data.size(), 0U);
  EXPECT_EQ(write_tensors(read.value().inputs), batch());
}

TEST(Tensors, RefusesWhatContradictsItself) {
  const std::vector<float> data(6, 0);
  const auto refused = [&](const char* type, std::vector<int64_t> shape) {
    const std::vector<TensorView> tensors{{"a", type, std::move(shape), std::as_bytes(std::span(data))}};
    const std::string message = write_tensors(tensors);
    return read_tensors(as_bytes(message)).status().code();
  };
  EXPECT_EQ(refused("FP32", {2, 4}), Code::kInvalid);
  EXPECT_EQ(refused("FP32", {-2, -3}), Code::kInvalid);
  EXPECT_EQ(refused("FP32", {1ll << 62, 1ll << 62}), Code::kInvalid);
  EXPECT_EQ(refused("FP31", {2, 3}), Code::kInvalid);
  EXPECT_EQ(refused("BYTES", {2, 3}), Code::kUnsupported);
  // A size of nothing beside sizes whose product would overflow.
  EXPECT_EQ(refused("FP32", {0, 1ll << 62, 1ll << 62}), Code::kInvalid);
}

TEST(Core, SaysWhatAVersionMayHoldAndHeld) {
  const std::string map = ProtoWriter().text(1, "v").text(6, "at").varint(9, 1ull << 40).out();
  EXPECT_EQ(read_map_model(as_bytes(map)).value().working_bytes, 1ull << 40);
  EXPECT_FALSE(read_describe({}).value());
  EXPECT_TRUE(read_describe(as_bytes(ProtoWriter().varint(1, 1).out())).value());
  EXPECT_EQ(read_describe(as_bytes(ProtoWriter().text(1, "x").out())).status().code(), Code::kInvalid);
  SessionInfo session;
  session.most_bytes = 77;
  const std::string written = write_session(session);
  ProtoReader reader(as_bytes(written), "CoreSession");
  uint64_t most = 0;
  while (reader.next())
    if (reader.field() == 8) most = reader.varint();
  EXPECT_EQ(most, 77u);
}

TEST(Frames, AreCutOutOfAnyPieces) {
  std::string stream;
  for (const size_t size : {0, 1, 70'000, 3, 200'000}) {
    const std::string body(size, 'x');
    stream += encode_frame(FrameKind::kCall, size, "head", size) + body;
  }
  std::mt19937 random(7);
  FrameReader reader(1 << 20);
  std::vector<size_t> found;
  for (size_t at = 0; at < stream.size();) {
    const std::span<std::byte> space = reader.space();
    const size_t count = std::min({space.size(), stream.size() - at, size_t{1} + random() % 50'000});
    std::memcpy(space.data(), stream.data() + at, count);
    reader.received(count);
    at += count;
    while (true) {
      Result<std::optional<Frame>> frame = reader.next();
      ASSERT_TRUE(frame.ok());
      if (!frame.value()) break;
      EXPECT_EQ(as_text(frame.value()->head), "head");
      EXPECT_EQ(frame.value()->body.size(), frame.value()->call);
      found.push_back(frame.value()->body.size());
    }
  }
  EXPECT_EQ(found, (std::vector<size_t>{0, 1, 70'000, 3, 200'000}));
}

TEST(Frames, RefuseWhatIsTooLarge) {
  FrameReader reader(1000);
  const std::string frame = encode_frame(FrameKind::kCall, 1, "", 1001);
  std::memcpy(reader.space().data(), frame.data(), frame.size());
  reader.received(frame.size());
  EXPECT_EQ(reader.next().status().code(), Code::kInvalid);
}

TEST(RpcError, CutsAndCleansTexts) {
  const std::string encoded = encode({RpcCode::kInternal, "REASON", std::string(999, 'a') + "\xC3\xA9\xFF", {}, 0.25});
  EXPECT_LT(encoded.size(), 1200U);
  EXPECT_EQ(encoded.find('\xFF'), std::string::npos);
}

// Seeded mutations of good messages, and plain noise. Under the sanitizers any read out of bounds ends the test.
TEST(Fuzz, NoBytesCrashADecoder) {
  const std::vector<std::string> good{
      execute(),
      ProtoWriter()
          .text(1, "v")
          .varint(2, 1 << 30)
          .varint(3, 1 << 20)
          .element(5, ProtoWriter().varint(2, 9).out())
          .out(),
      ProtoWriter()
          .text(1, "s")
          .text(3, "/tmp/s")
          .element(4, ProtoWriter().varint(1, 65536).number(3, 1.5).out())
          .out(),
      ProtoWriter()
          .text(1, "v")
          .element(2, ProtoWriter().text(1, "/t").element(2, ProtoWriter().text(1, "x").out()).out())
          .out(),
      encode_frame(FrameKind::kCall, 3, encode_call_head("/a/b", std::chrono::seconds(1), "t"), 4) + "body",
  };
  std::mt19937 random(20);
  const Config config;
  for (int round = 0; round < 60'000; ++round) {
    std::string bytes = good[random() % good.size()];
    if (round % 10 == 0) bytes = std::string(random() % 64, '\0');
    for (unsigned edits = random() % 8; edits > 0 && !bytes.empty(); --edits) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, 1 + random() % 4);
          break;
        case 2:
          bytes.insert(at, 1 + random() % 4, static_cast<char>(random()));
          break;
        default:
          bytes.resize(at);
      }
    }
    // In memory of its own size, so that one byte too far is seen.
    const std::vector<char> exact(bytes.begin(), bytes.end());
    const Bytes view = std::as_bytes(std::span(exact));
    (void)read_execute(view).ok();
    (void)read_map_model(view).ok();
    (void)read_open_session(view, config).ok();
    (void)read_load_tapes(view).ok();
    (void)read_id(view, "id").ok();
    (void)read_call_head(view).ok();
    FrameReader reader(1 << 16);
    const std::span<std::byte> space = reader.space();
    ASSERT_LE(view.size(), space.size());
    if (!view.empty()) std::memcpy(space.data(), view.data(), view.size());
    reader.received(view.size());
    while (true) {
      Result<std::optional<Frame>> frame = reader.next();
      if (!frame.ok() || !frame.value()) break;
    }
  }
}

}  // namespace
}  // namespace rouse::serve
