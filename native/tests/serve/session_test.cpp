// Sessions: rings handed over a socket, each side notices the other's end, bad bytes end one session only.
#include "in_thread.h"
#include "rouse/serve/protobuf.h"
#include "rouse/serve/session_client.h"

namespace rouse::serve::testing {
namespace {

using std::chrono::seconds;

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() : caller_(executor_.path("link")) { caller_.hello(); }

  void open(const char* id) {
    const std::string body = ProtoWriter().text(1, id).text(3, executor_.path(id)).out();
    const auto answer = caller_.ask(kCore + "OpenSession", body);
    ASSERT_EQ(answer.kind, FrameKind::kLast) << answer.body;
  }
  std::unique_ptr<SessionClient> connect(const char* id) {
    auto client = SessionClient::connect(executor_.path(id), seconds(5));
    EXPECT_TRUE(client.ok()) << client.status().text();
    return std::move(client).value();
  }
  static Status send(SessionClient& client, wire::Kind kind, uint64_t token) {
    Result<std::byte*> room = client.channel().out().reserve(sizeof(wire::Sync), ring::Clock::now() + seconds(5));
    if (!room.ok()) return room.status();
    const wire::Sync sync{{sizeof(wire::Sync), static_cast<uint16_t>(kind), 0}, token};
    std::memcpy(room.value(), &sync, sizeof(sync));
    client.channel().out().commit(sizeof(sync));
    client.channel().out().flush();
    return {};
  }
  // What comes back to a SYNC: its token.
  static Result<uint64_t> receive(SessionClient& client) {
    Result<std::span<const std::byte>> message = client.channel().in().next(ring::Clock::now() + seconds(20));
    if (!message.ok()) return message.status();
    if (message.value().empty()) return Status(Code::kDeadline, "nothing came");
    wire::Sync done;
    std::memcpy(&done, message.value().data(), sizeof(done));
    client.channel().in().release();
    return done.token;
  }
  static uint64_t round_trip(SessionClient& client, uint64_t token) {
    EXPECT_TRUE(send(client, wire::Kind::kSync, token).ok());
    Result<uint64_t> answer = receive(client);
    EXPECT_TRUE(answer.ok()) << answer.status().text();
    return answer.ok() ? answer.value() : ~token;
  }

  InThread executor_;
  Caller caller_;
};

TEST_F(SessionTest, CarriesMessagesBothWays) {
  open("a");
  const auto client = connect("a");
  for (uint64_t token = 1; token < 1000; ++token) ASSERT_EQ(round_trip(*client, token), token);
}

TEST_F(SessionTest, IsForTheFirstThatConnects) {
  open("a");
  const auto client = connect("a");
  ASSERT_EQ(round_trip(*client, 1), 1U);
  EXPECT_EQ(SessionClient::connect(executor_.path("a"), seconds(1)).status().code(), Code::kPeerGone);
}

TEST_F(SessionTest, BadBytesEndOneSessionOnly) {
  open("a");
  open("b");
  const auto bad = connect("a");
  const auto good = connect("b");
  ASSERT_TRUE(send(*bad, static_cast<wire::Kind>(999), 1).ok());
  EXPECT_EQ(receive(*bad).status().code(), Code::kPeerGone);
  EXPECT_EQ(round_trip(*good, 7), 7U);
}

TEST_F(SessionTest, AClosedSessionIsNoticedByItsClient) {
  open("a");
  const auto client = connect("a");
  ASSERT_EQ(round_trip(*client, 1), 1U);
  EXPECT_EQ(caller_.ask(kCore + "CloseSession", ProtoWriter().text(1, "a").out()).kind, FrameKind::kLast);
  EXPECT_EQ(receive(*client).status().code(), Code::kPeerGone);
  // The name is free again.
  open("a");
  EXPECT_EQ(round_trip(*connect("a"), 2), 2U);
}

TEST_F(SessionTest, AClientThatGoesFreesItsName) {
  open("a");
  ASSERT_EQ(round_trip(*connect("a"), 1), 1U);
  // Closing waits for the end that has begun already.
  EXPECT_EQ(caller_.ask(kCore + "CloseSession", ProtoWriter().text(1, "a").out()).kind, FrameKind::kLast);
  open("a");
}

TEST_F(SessionTest, NobodyWhoConnectsEndsIt) {
  const std::string limits = ProtoWriter().number(3, 0.02).out();
  const std::string body = ProtoWriter().text(1, "a").text(3, executor_.path("a")).element(4, limits).out();
  ASSERT_EQ(caller_.ask(kCore + "OpenSession", body).kind, FrameKind::kLast);
  // Until the name is free again.
  auto answer = caller_.ask(kCore + "OpenSession", body);
  for (int tries = 0; tries < 100'000 && answer.kind == FrameKind::kError; ++tries) {
    answer = caller_.ask(kCore + "OpenSession", body);
  }
  EXPECT_EQ(answer.kind, FrameKind::kLast);
}

TEST_F(SessionTest, SessionsComputeInTurns) {
  constexpr int kSessions = 4;
  std::vector<std::thread> threads;
  for (int i = 0; i < kSessions; ++i) {
    const std::string id = "s" + std::to_string(i);
    open(id.c_str());
    threads.emplace_back([this, id] {
      const auto client = connect(id.c_str());
      for (uint64_t token = 1; token < 300; ++token) EXPECT_EQ(round_trip(*client, token), token);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace rouse::serve::testing
