#include "rouse/ring/ring.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>

#include "rouse/ring/watch.h"

namespace rouse::ring {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kBytes = 64u << 10;

struct Pair {
  std::unique_ptr<Channel> client, executor;
};

Pair pair() {
  auto client = Channel::create(Side::kClient, kBytes);
  EXPECT_TRUE(client.ok()) << client.status().describe();
  auto executor = Channel::open(Side::kExecutor, dup(client.value()->descriptor()));
  EXPECT_TRUE(executor.ok()) << executor.status().describe();
  return {std::move(client).value(), std::move(executor).value()};
}

// A message whose words follow from its number.
void send(Producer& out, std::uint64_t number, std::size_t words, bool flush = true) {
  auto room = out.reserve(8 * (words + 1), Clock::now() + seconds(20));
  ASSERT_TRUE(room.ok()) << room.status().describe();
  std::uint64_t head = 8 * (words + 1);
  std::memcpy(room.value(), &head, 8);
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t word = number * 1000003 + i;
    std::memcpy(room.value() + 8 * (i + 1), &word, 8);
  }
  out.commit(8 * (words + 1));
  if (flush) out.flush();
}

void expect(Consumer& in, std::uint64_t number) {
  auto message = in.next(Clock::now() + seconds(20));
  ASSERT_TRUE(message.ok()) << message.status().describe();
  ASSERT_GE(message.value().size(), 8u);
  for (std::size_t at = 8; at < message.value().size(); at += 8) {
    std::uint64_t word;
    std::memcpy(&word, message.value().data() + at, 8);
    ASSERT_EQ(word, number * 1000003 + at / 8 - 1);
  }
  in.release();
}

TEST(Ring, CarriesMessagesOfAllSizesBothWaysInOrder) {
  auto [client, executor] = pair();
  constexpr int kMessages = 20000;
  auto sizes = [](int seed) {
    std::mt19937 random(seed);
    return [random]() mutable { return random() % 50 == 0 ? random() % 2000 : random() % 12; };
  };
  std::thread echo([&executor = *executor, &sizes] {
    auto size = sizes(2);
    for (int i = 0; i < kMessages; ++i) {
      expect(executor.in(), i);
      send(executor.out(), i, size(), i % 3 == 0);
    }
    executor.out().flush();
  });
  std::thread reader([&client = *client] {
    for (int i = 0; i < kMessages; ++i) expect(client.in(), i);
  });
  auto size = sizes(1);
  for (int i = 0; i < kMessages; ++i) send(client->out(), i, size(), i % 5 == 0);
  client->out().flush();
  echo.join();
  reader.join();
}

TEST(Ring, GivesNothingBeforeFlushAndNothingAfterTheDeadline) {
  auto [client, executor] = pair();
  send(client->out(), 1, 3, false);
  auto none = executor->in().next(Clock::now() + milliseconds(5));
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none.value().empty());
  client->out().flush();
  expect(executor->in(), 1);
}

TEST(Ring, SaysWhenTheOtherSideDoesNotRead) {
  auto [client, executor] = pair();
  Status last;
  for (int i = 0; i < 100 && last.ok(); ++i) {
    auto room = client->out().reserve(kBytes / 4, Clock::now() + milliseconds(5));
    if (!room.ok()) {
      last = room.status();
    } else {
      std::uint64_t head = kBytes / 4;
      std::memcpy(room.value(), &head, 8);
      client->out().commit(kBytes / 4);
    }
  }
  EXPECT_EQ(last.code(), Code::kDeadline);
  EXPECT_EQ(client->out().reserve(kBytes / 2, Clock::now()).status().code(), Code::kInvalid);
  EXPECT_EQ(client->out().reserve(12, Clock::now()).status().code(), Code::kInvalid);
}

TEST(Ring, RefusesLengthsThatCannotBe) {
  for (std::uint64_t head : {0ull, 4ull, 12ull, 1ull << 20, 0xffffffffull, 64ull}) {
    auto [client, executor] = pair();
    auto room = client->out().reserve(16, Clock::now());
    std::memcpy(room.value(), &head, 8);
    client->out().commit(16);
    client->out().flush();
    EXPECT_EQ(executor->in().next(Clock::now()).status().code(), Code::kInvalid) << head;
  }
}

TEST(Ring, ADeathEndsWaitsAfterWhatWasPublished) {
  auto [client, executor] = pair();
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  send(client->out(), 7, 2);
  {
    PeerWatch watch(*executor, ends[0]);
    std::thread dies([&] { close(ends[1]); });
    expect(executor->in(), 7);
    EXPECT_EQ(executor->in().next(Clock::now() + seconds(20)).status().code(), Code::kPeerGone);
    dies.join();
  }
  EXPECT_TRUE(client->dead());
  close(ends[0]);
}

TEST(Ring, RefusesADescriptorThatCouldShrink) {
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  EXPECT_EQ(Channel::open(Side::kExecutor, pipes[0]).status().code(), Code::kInvalid);
  close(pipes[1]);
}

}  // namespace
}  // namespace rouse::ring
