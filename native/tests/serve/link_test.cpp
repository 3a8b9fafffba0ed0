// The serving end of a link, by what goes over the wire.
#include <fstream>

#include "in_thread.h"
#include "rouse/serve/protobuf.h"

namespace rouse::serve::testing {
namespace {

std::string request(const char* id, std::string_view lease = "attachment/1") {
  const float data[2] = {1, 2};
  const std::vector<TensorView> inputs{{"x", "FP32", {2}, std::as_bytes(std::span(data))}};
  return ProtoWriter().text(1, lease).text(2, id).text(3, write_tensors(inputs)).out();
}

std::string map_request(uint64_t bytes = 4096) {
  return ProtoWriter().text(1, "v1").varint(2, 0x5000'0000'0000).varint(3, bytes).text(6, "attachment").out();
}

TEST(Link, AnswersCallsAndErrors) {
  InThread executor;
  Caller caller(executor.path("link"));
  caller.hello();
  const auto described = caller.ask(kCore + "Describe", "");
  EXPECT_EQ(described.kind, FrameKind::kLast);
  EXPECT_NE(described.body.find("host:0"), std::string::npos);
  const auto unknown = caller.ask("/a.B/C", "");
  EXPECT_EQ(unknown.kind, FrameKind::kError);
  EXPECT_NE(unknown.body.find("UNKNOWN_METHOD"), std::string::npos);
  const auto bad = caller.ask(kCore + "OpenSession", "\xFF");
  EXPECT_EQ(bad.kind, FrameKind::kError);
  EXPECT_NE(bad.body.find("BAD_SESSION"), std::string::npos);
}

TEST(Link, HangsUpOnWhatIsNoLink) {
  InThread executor;
  const std::string cancel = encode_frame(FrameKind::kCancel, 1, "", 0);
  const std::string hello = encode_frame(FrameKind::kHello, 0, {}, kLinkMagic.size()) + std::string(kLinkMagic);
  const std::string wrong_kind = hello + encode_frame(FrameKind::kLast, 1, "", 0);
  const std::string huge = hello + encode_frame(FrameKind::kCall, 1, "", 1 << 30);
  const std::string short_head = hello + encode_frame(FrameKind::kCall, 1, "abc", 0);
  for (const std::string& bytes : {std::string(64, 'x'), cancel, wrong_kind, huge, short_head}) {
    Caller caller(executor.path("link"));
    caller.write(bytes);
    while (caller.read()) {
    }
  }
  Caller good(executor.path("link"));
  good.hello();
  EXPECT_EQ(good.ask(kCore + "Describe", "").kind, FrameKind::kLast);
}

TEST(Link, TapesAnswerExecute) {
  InThread executor;
  Caller caller(executor.path("link"));
  caller.hello();
  EXPECT_NE(caller.ask(kExecute, request("r")).body.find("STALE_LEASE"), std::string::npos);
  EXPECT_EQ(caller.ask(kCore + "MapModel", map_request()).kind, FrameKind::kLast);
  EXPECT_NE(caller.ask(kCore + "MapModel", map_request()).body.find("MODEL_MAPPED"), std::string::npos);
  EXPECT_NE(caller.ask(kExecute, request("r")).body.find("NO_TAPE"), std::string::npos);
  const std::string path = executor.path("tape");
  std::ofstream(path) << "FP32\n";
  const std::string load = ProtoWriter().text(1, "v1").element(2, ProtoWriter().text(1, path).out()).out();
  EXPECT_EQ(caller.ask(kCore + "LoadTapes", load).kind, FrameKind::kLast);
  const auto answer = caller.ask(kExecute, request("r"));
  EXPECT_EQ(answer.kind, FrameKind::kLast);
  ::unlink(path.c_str());
  const std::string unmap = ProtoWriter().text(1, "v1").out();
  EXPECT_EQ(caller.ask(kCore + "UnmapModel", unmap).body, ProtoWriter().varint(1, 4096).out());
  EXPECT_EQ(caller.ask(kCore + "UnmapModel", unmap).body, "");
  EXPECT_NE(caller.ask(kExecute, request("r")).body.find("STALE_LEASE"), std::string::npos);
}

TEST(Link, DeadlinesAndCancellationsEndWhatComputes) {
  InThread executor;
  Caller caller(executor.path("link"));
  caller.hello();
  caller.ask(kCore + "MapModel", map_request());
  caller.call(1, kExecute, request("endless"), std::chrono::milliseconds(20));
  const auto late = caller.read();
  EXPECT_EQ(late->kind, FrameKind::kError);
  EXPECT_NE(late->body.find("DEADLINE_EXCEEDED"), std::string::npos);
  caller.call(2, kExecute, request("endless"));
  caller.write(encode_frame(FrameKind::kCancel, 2, "", 0));
  // A cancelled call is not answered, and the device is free again.
  EXPECT_NE(caller.ask(kExecute, request("r")).body.find("NO_TAPE"), std::string::npos);
}

TEST(Link, ACallerThatGoesEndsItsCalls) {
  InThread executor;
  {
    Caller gone(executor.path("link"));
    gone.hello();
    gone.ask(kCore + "MapModel", map_request());
    gone.call(1, kExecute, request("endless"));
  }
  Caller caller(executor.path("link"));
  caller.hello();
  EXPECT_NE(caller.ask(kExecute, request("r")).body.find("NO_TAPE"), std::string::npos);
}

TEST(Link, RefusesMoreCallsThanItServes) {
  Config config;
  config.max_calls = 4;
  InThread executor(config);
  Caller caller(executor.path("link"));
  caller.hello();
  caller.ask(kCore + "MapModel", map_request());
  for (uint64_t number = 1; number <= 4; ++number) caller.call(number, kExecute, request("endless"));
  EXPECT_NE(caller.ask(kCore + "Describe", "").body.find("TOO_MANY_CALLS"), std::string::npos);
}

}  // namespace
}  // namespace rouse::serve::testing
