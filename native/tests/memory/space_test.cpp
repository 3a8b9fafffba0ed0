#include "rouse/memory/space.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "rouse/device/host.h"
#include "test_base.h"

namespace rouse::memory {
namespace {

using device::kTestBase;

constexpr uint64_t kMiB = 1 << 20;

std::unique_ptr<device::Device> host(uint64_t capacity) {
  auto made = device::make_host_device({.capacity = capacity});
  EXPECT_TRUE(made.ok()) << made.status().describe();
  return std::move(made).value();
}

char* bytes_at(uint64_t address) { return reinterpret_cast<char*>(address); }

TEST(Space, ARangeHoldsWhatWasWrittenUntilItIsReleased) {
  auto device = host(64 * kMiB);
  Space space(*device);
  ASSERT_TRUE(space.reserve(kTestBase, 11 * kMiB + 1, Region::kModel).ok());
  EXPECT_EQ(space.usage().reserved, 12 * kMiB);
  ASSERT_TRUE(space.map(kTestBase).ok());
  EXPECT_EQ(space.map(kTestBase).code(), Code::kRefused);
  std::memset(bytes_at(kTestBase), 5, 12 * kMiB);
  EXPECT_EQ(bytes_at(kTestBase)[12 * kMiB - 1], 5);
  EXPECT_EQ(space.usage().mapped, 12 * kMiB);
  ASSERT_TRUE(space.release(kTestBase).ok());
  EXPECT_EQ(space.release(kTestBase).code(), Code::kNotFound);
  EXPECT_EQ(space.usage().free, 64 * kMiB);
  EXPECT_TRUE(space.check().ok());
}

TEST(Space, ARefusedReservationTakesNothing) {
  auto device = host(16 * kMiB);
  Space space(*device);
  ASSERT_TRUE(space.reserve(kTestBase, 10 * kMiB, Region::kModel).ok());
  EXPECT_EQ(space.reserve(kTestBase + 64 * kMiB, 8 * kMiB, Region::kState).code(), Code::kExhausted);
  EXPECT_EQ(space.reserve(kTestBase + 64 * kMiB, 17 * kMiB, Region::kState).code(), Code::kExhausted);
  EXPECT_EQ(space.reserve(kTestBase + 64 * kMiB, 0, Region::kState).code(), Code::kInvalid);
  EXPECT_EQ(space.reserve(kTestBase + 2 * kMiB, 2 * kMiB, Region::kState).code(), Code::kMismatch);
  EXPECT_TRUE(space.check().ok());
  // The addresses of the refused one are still to be had.
  EXPECT_TRUE(space.reserve(kTestBase + 64 * kMiB, 6 * kMiB, Region::kScratch).ok());
}

TEST(Space, KeptChunksOfOneSizeAreBrokenUpForAnother) {
  auto device = host(64 * kMiB);
  Space space(*device);
  ASSERT_TRUE(space.reserve(kTestBase, 64 * kMiB, Region::kModel).ok());  // two of 32 MiB
  ASSERT_TRUE(space.release(kTestBase).ok());
  for (uint64_t i = 0; i < 32; ++i) ASSERT_TRUE(space.reserve(kTestBase + i * 4 * kMiB, 2 * kMiB, Region::kModel).ok());
  for (uint64_t i = 0; i < 32; ++i) ASSERT_TRUE(space.release(kTestBase + i * 4 * kMiB).ok());
  EXPECT_TRUE(space.reserve(kTestBase, 64 * kMiB, Region::kModel).ok());
  EXPECT_TRUE(space.map(kTestBase).ok());
  EXPECT_TRUE(space.check().ok());
  EXPECT_EQ(device->usage().free, 0u);
}

// Whatever is done, the account adds up and no two ranges share a byte.
TEST(Space, TheAccountAddsUpAfterEveryStepOfARandomRun) {
  auto device = host(64 * kMiB);
  Space space(*device);
  std::mt19937_64 random(3);
  std::map<uint64_t, std::pair<uint64_t, char>> mapped;  // address → bytes and mark; bytes 0: reserved only
  for (int step = 0; step < 3000; ++step) {
    const uint64_t address = kTestBase + random() % 40 * 2 * kMiB;
    switch (random() % 3) {
      case 0: {
        if (space.reserve(address, 1 + random() % (20 * kMiB), Region::kModel).ok()) mapped[address] = {0, 0};
        break;
      }
      case 1: {
        if (!space.map(address).ok()) break;
        for (const RangeInfo& range : space.ranges()) {
          if (range.address == address) mapped[address] = {range.bytes, static_cast<char>(random())};
        }
        bytes_at(address)[0] = bytes_at(address)[mapped[address].first - 1] = mapped[address].second;
        break;
      }
      default: {
        const auto found = mapped.find(address);
        if (found != mapped.end() && found->second.first) {
          ASSERT_EQ(bytes_at(address)[0], found->second.second);
          ASSERT_EQ(bytes_at(address)[found->second.first - 1], found->second.second);
        }
        ASSERT_EQ(space.release(address).ok(), found != mapped.end());
        if (found != mapped.end()) mapped.erase(found);
      }
    }
    ASSERT_TRUE(space.usage().adds_up());
    ASSERT_TRUE(space.check().ok()) << space.check().describe();
    ASSERT_TRUE(step % 500 != 0 || space.trim().ok());
  }
}

TEST(Space, ThreadsMayUseItTogether) {
  auto device = host(64 * kMiB);
  Space space(*device);
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (uint64_t worker = 0; worker < 4; ++worker) {
    threads.emplace_back([&, worker] {
      std::mt19937_64 random(worker);
      const uint64_t address = kTestBase + worker * 64 * kMiB;
      for (int round = 0; round < 100; ++round) {
        const uint64_t bytes = 1 + random() % (24 * kMiB);
        if (!space.reserve(address, bytes, Region::kModel).ok()) continue;
        ASSERT_TRUE(space.map(address).ok());
        bytes_at(address)[bytes - 1] = static_cast<char>(worker);
        ASSERT_TRUE(space.check().ok());
        ASSERT_EQ(bytes_at(address)[bytes - 1], static_cast<char>(worker));
        ASSERT_TRUE(space.release(address).ok());
        ++done;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GT(done, 0);
  EXPECT_EQ(space.usage().free, 64 * kMiB);
}

}  // namespace
}  // namespace rouse::memory
