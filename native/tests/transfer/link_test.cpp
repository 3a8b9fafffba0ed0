#include "rouse/transfer/link.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "rouse/device/host.h"
#include "rouse/memory/space.h"
#include "rouse/transfer/elbow.h"
#include "test_base.h"

namespace rouse::transfer {
namespace {

using device::kTestBase;
using std::chrono::seconds;

constexpr uint64_t kMiB = 1 << 20;

Deadline soon() { return std::chrono::steady_clock::now() + seconds(60); }

class LinkTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = device::make_host_device({.capacity = 64 * kMiB});
    ASSERT_TRUE(made.ok());
    device_ = std::move(made).value();
    space_ = std::make_unique<memory::Space>(*device_);
  }
  std::unique_ptr<Link> link(LinkOptions options = {}) {
    auto made = Link::make(*device_, options);
    EXPECT_TRUE(made.ok()) << made.status().describe();
    return std::move(made).value();
  }
  // A mapped range, and random bytes to put there.
  SwapRequest model(uint64_t address, uint64_t bytes, std::span<const Extent> order = {},
                    std::span<const Extent> tables = {}) {
    EXPECT_TRUE(space_->reserve(address, bytes, memory::Region::kModel).ok());
    EXPECT_TRUE(space_->map(address).ok());
    auto image = std::make_shared<std::vector<char>>(bytes);
    // Different in every place, and quick to make under sanitizers: every 64 bytes begin with a number.
    uint64_t number = address + bytes;
    for (uint64_t at = 0; at + 8 <= bytes; at += 64) std::memcpy(image->data() + at, &++number, 8);
    SwapRequest request;
    request.residency = std::make_shared<Residency>(address, bytes);
    auto plan = plan_groups(bytes, order, tables, 256 << 10);
    EXPECT_TRUE(plan.ok());
    request.plan = std::move(plan).value();
    request.image = image->data();
    request.keep = image;
    return request;
  }
  static bool same(const SwapRequest& request, uint64_t offset, uint64_t bytes) {
    return std::memcmp(reinterpret_cast<const char*>(request.residency->address() + offset),
                       static_cast<const char*>(request.image) + offset, bytes) == 0;
  }

  std::unique_ptr<device::Device> device_;
  std::unique_ptr<memory::Space> space_;
};

TEST_F(LinkTest, ASwapBringsEveryByte) {
  auto copies = link();
  const SwapRequest request = model(kTestBase, 9 * kMiB + 123);
  auto swap = copies->start(request);
  ASSERT_TRUE(swap.ok());
  ASSERT_TRUE(swap.value()->wait(soon()).ok());
  EXPECT_TRUE(request.residency->all_ready());
  EXPECT_TRUE(same(request, 0, 9 * kMiB + 123));
  EXPECT_EQ(swap.value()->copied_bytes(), 9 * kMiB + 123);
  EXPECT_GT(swap.value()->took().count(), 0);
}

TEST_F(LinkTest, OperationsReadWhatTheyWaitedForWhileItRuns) {
  auto copies = link();
  const uint64_t bytes = 12 * kMiB + 5;
  std::mt19937_64 random(1);
  std::vector<Extent> order;
  for (uint64_t at = 0; at + 100000 < bytes; at += 100000) order.push_back({at, 100000});
  std::shuffle(order.begin(), order.end(), random);
  const SwapRequest request = model(kTestBase, bytes, order);
  auto swap = copies->start(request);
  ASSERT_TRUE(swap.ok());
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 2; ++reader) {
    readers.emplace_back([&, reader] {
      // One follows the plan; the other asks for what comes when it comes.
      std::vector<Extent> mine = order;
      std::mt19937_64 own(9);
      if (reader == 1) std::shuffle(mine.begin(), mine.end(), own);
      for (const Extent& extent : mine) {
        ASSERT_TRUE(request.residency->wait_ready(kTestBase + extent.offset, extent.bytes, soon()).ok());
        ASSERT_TRUE(same(request, extent.offset, extent.bytes));
      }
    });
  }
  for (auto& reader : readers) reader.join();
  ASSERT_TRUE(swap.value()->wait(soon()).ok());
  EXPECT_EQ(swap.value()->copied_bytes(), bytes) << "no byte twice";
}

TEST_F(LinkTest, RowsComeBeforeTheRestOfTheirTable) {
  // 4 MiB/s: the table would take seconds.
  auto copies = link({.bytes_per_second = 4 * kMiB});
  const uint64_t row = 3000, rows = 4000;
  const Extent tables[] = {{0, row * rows}};
  const SwapRequest request = model(kTestBase, row * rows + kMiB, {}, tables);
  auto swap = copies->start(request);
  ASSERT_TRUE(swap.ok());
  const int64_t wanted[] = {3999, 17, 2000};
  ASSERT_TRUE(request.residency->wait_rows(kTestBase, row, wanted, soon()).ok());
  for (const int64_t number : wanted) EXPECT_TRUE(same(request, static_cast<uint64_t>(number) * row, row));
  EXPECT_FALSE(request.residency->all_ready());
  swap.value()->cancel();
  EXPECT_EQ(swap.value()->wait(soon()).code(), Code::kCancelled);
  EXPECT_LT(swap.value()->copied_bytes(), row * rows);
}

TEST_F(LinkTest, ACancelledSwapEndsForItsWaitersAndItsImageIsLetGo) {
  auto copies = link({.bytes_per_second = 1 * kMiB});
  SwapRequest request = model(kTestBase, 8 * kMiB);
  const std::weak_ptr<const void> image = request.keep;
  const std::shared_ptr<Residency> residency = request.residency;
  auto swap = copies->start(std::move(request));
  ASSERT_TRUE(swap.ok());
  std::thread waiter(
      [&] { EXPECT_EQ(residency->wait_ready(kTestBase + 7 * kMiB, kMiB, soon()).code(), Code::kCancelled); });
  swap.value()->cancel();
  EXPECT_EQ(swap.value()->wait(soon()).code(), Code::kCancelled);
  waiter.join();
  request = {};
  EXPECT_TRUE(image.expired());
  EXPECT_TRUE(space_->release(kTestBase).ok());
}

TEST_F(LinkTest, SwapsShareALinkByWeight) {
  auto copies = link({.bytes_per_second = 16 * kMiB, .quantum_bytes = 256 << 10});
  SwapRequest first = model(kTestBase, 8 * kMiB), second = model(kTestBase + 32 * kMiB, 8 * kMiB);
  second.weight = 3;
  auto one = copies->start(std::move(first)), two = copies->start(std::move(second));
  ASSERT_TRUE(one.ok() && two.ok());
  ASSERT_TRUE(two.value()->wait(soon()).ok());
  // By then a third of the other has come; what was copied before the second began is on top.
  EXPECT_GT(one.value()->copied_bytes(), 1 * kMiB);
  EXPECT_FALSE(one.value()->over());
  ASSERT_TRUE(one.value()->wait(soon()).ok());
}

TEST_F(LinkTest, ASiblingIsASourceToo) {
  auto made = device::make_host_device({.capacity = 16 * kMiB});
  ASSERT_TRUE(made.ok());
  memory::Space theirs(*made.value());
  const uint64_t there = kTestBase + 128 * kMiB;
  ASSERT_TRUE(theirs.reserve(there, 5 * kMiB, memory::Region::kModel).ok() && theirs.map(there).ok());
  SwapRequest request = model(kTestBase, 5 * kMiB);
  std::memcpy(reinterpret_cast<char*>(there), request.image, 5 * kMiB);
  SwapRequest from_peer = request;
  from_peer.image = nullptr;
  from_peer.peer = made.value().get();
  from_peer.peer_address = there;
  auto copies = link();
  auto swap = copies->start(from_peer);
  ASSERT_TRUE(swap.ok());
  ASSERT_TRUE(swap.value()->wait(soon()).ok());
  EXPECT_TRUE(same(request, 0, 5 * kMiB));
}

TEST_F(LinkTest, WhatCannotBeCopiedFailsForWhoeverWaits) {
  auto copies = link();
  SwapRequest request = model(kTestBase, 4 * kMiB);
  ASSERT_TRUE(space_->release(kTestBase).ok());
  const std::shared_ptr<Residency> residency = request.residency;
  auto swap = copies->start(std::move(request));
  ASSERT_TRUE(swap.ok());
  EXPECT_EQ(residency->wait_ready(kTestBase, 1, soon()).code(), Code::kInvalid);
  EXPECT_EQ(swap.value()->wait(soon()).code(), Code::kInvalid);
}

TEST_F(LinkTest, RequestsThatMakeNoSenseAreRefused) {
  auto copies = link({.bytes_per_second = kMiB, .max_swaps = 1});
  SwapRequest request = model(kTestBase, 4 * kMiB);
  SwapRequest other = request;
  other.image = nullptr;
  EXPECT_EQ(copies->start(other).status().code(), Code::kInvalid);
  other = request;
  other.plan.bytes += 1;
  EXPECT_EQ(copies->start(other).status().code(), Code::kInvalid);
  auto swap = copies->start(request);
  ASSERT_TRUE(swap.ok());
  other = request;
  other.residency = std::make_shared<Residency>(kTestBase, 4 * kMiB);
  EXPECT_EQ(copies->start(other).status().code(), Code::kExhausted);
  copies.reset();  // cancels and waits
  EXPECT_EQ(swap.value()->wait(soon()).code(), Code::kCancelled);
  EXPECT_EQ(Link::make(*device_, {.step_bytes = 1}).status().code(), Code::kInvalid);
  EXPECT_EQ(Link::make(*device_, {.in_flight = 0}).status().code(), Code::kInvalid);
}

TEST_F(LinkTest, TheCurveHasAPointForEachSize) {
  const SwapRequest request = model(kTestBase, 4 * kMiB);
  const uint64_t sizes[] = {64 << 10, 1 << 20};
  auto curve = measure_curve(*device_, kTestBase, request.image, 4 * kMiB, sizes, 3);
  ASSERT_TRUE(curve.ok());
  ASSERT_EQ(curve.value().size(), 2u);
  EXPECT_GT(curve.value()[0].bytes_per_second, 0);
  EXPECT_EQ(measure_curve(*device_, kTestBase + 64 * kMiB, request.image, kMiB, sizes, 1).status().code(),
            Code::kInvalid);
}

TEST_F(LinkTest, SwapsComeAndGoAtRandom) {
  auto copies = link({.quantum_bytes = 512 << 10, .step_bytes = 128 << 10});
  std::mt19937_64 random(11);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::pair<SwapRequest, std::shared_ptr<Swap>>> open;
    for (uint64_t i = 0; i < 4; ++i) {
      SwapRequest request = model(kTestBase + i * 16 * kMiB, 1 + random() % (3 * kMiB));
      auto swap = copies->start(request);
      ASSERT_TRUE(swap.ok());
      open.emplace_back(std::move(request), std::move(swap).value());
    }
    const size_t victim = random() % open.size();
    open[victim].second->cancel();
    for (auto& [request, swap] : open) {
      const Status status = swap->wait(soon());
      if (status.ok()) {
        EXPECT_TRUE(same(request, 0, request.residency->bytes()));
      } else {
        EXPECT_EQ(status.code(), Code::kCancelled);
      }
      ASSERT_TRUE(space_->release(request.residency->address()).ok());
    }
    ASSERT_TRUE(space_->check().ok());
  }
}

}  // namespace
}  // namespace rouse::transfer
