#include "rouse/transfer/plan.h"

#include <gtest/gtest.h>

#include <random>

#include "rouse/transfer/elbow.h"
#include "rouse/transfer/fair.h"

namespace rouse::transfer {
namespace {

constexpr uint64_t kB = kBlockBytes;

void expect_partition(const Plan& plan, uint64_t bytes) {
  std::vector<bool> seen((bytes + kB - 1) / kB);
  uint64_t sum = 0;
  for (const Extent& extent : plan.extents) {
    ASSERT_EQ(extent.offset % kB, 0u);
    ASSERT_TRUE(extent.bytes % kB == 0 || extent.offset + extent.bytes == bytes);
    for (uint64_t at = extent.offset; at < extent.offset + extent.bytes; at += kB) {
      ASSERT_FALSE(seen[at / kB]);
      seen[at / kB] = true;
    }
    sum += extent.bytes;
  }
  EXPECT_EQ(sum, bytes);
  ASSERT_FALSE(plan.ends.empty());
  EXPECT_EQ(plan.ends.back(), plan.extents.size());
  EXPECT_TRUE(std::is_sorted(plan.ends.begin(), plan.ends.end()));
}

TEST(Plan, GroupsFollowTheOrderAndTablesComeLast) {
  const Extent order[] = {{6 * kB, kB}, {0, kB}, {2 * kB, 3 * kB}};
  const Extent tables[] = {{2 * kB, 3 * kB}};
  const auto plan = plan_groups(8 * kB + 7, order, tables, 2 * kB);
  ASSERT_TRUE(plan.ok());
  expect_partition(plan.value(), 8 * kB + 7);
  const std::vector<Extent> expected = {{6 * kB, kB},     {0, kB},          {kB, kB},    {5 * kB, kB},
                                        {7 * kB, kB + 7}, {2 * kB, 2 * kB}, {4 * kB, kB}};
  EXPECT_EQ(plan.value().extents, expected);
}

TEST(Plan, AGroupAnExtentIsPerParameter) {
  const Extent order[] = {{0, kB / 2}, {kB / 2, kB / 2}, {kB, 5 * kB}, {6 * kB, kB}};
  const auto plan = plan_groups(7 * kB, order, {}, 0);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan.value().ends.size(), 3u) << "the second has no block of its own";
  expect_partition(plan.value(), 7 * kB);
}

TEST(Plan, WhatATensorSharesWithATableIsNotDeferred) {
  const Extent tables[] = {{100, 4 * kB}};
  const auto plan = plan_groups(6 * kB, {}, tables, kB);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan.value().extents.front(), (Extent{0, kB}));
  EXPECT_EQ(plan.value().extents.back(), (Extent{3 * kB, kB}));
}

TEST(Plan, NonsenseIsRefused) {
  const Extent beyond[] = {{1, kB}};
  EXPECT_EQ(plan_groups(kB, beyond, {}, kB).status().code(), Code::kInvalid);
  const Extent wraps[] = {{kB, ~uint64_t{0}}};
  EXPECT_EQ(plan_groups(kB, {}, wraps, kB).status().code(), Code::kInvalid);
  EXPECT_EQ(plan_groups(0, {}, {}, kB).status().code(), Code::kInvalid);
}

TEST(Plan, EveryBlockIsPlannedOnce) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    const uint64_t bytes = 1 + random() % (80 * kB);
    const auto some = [&] {
      std::vector<Extent> extents(random() % 12);
      for (Extent& extent : extents) {
        extent.offset = random() % bytes;
        extent.bytes = random() % (bytes - extent.offset + 1);
      }
      return extents;
    };
    const auto plan = plan_groups(bytes, some(), some(), random() % 3 ? random() % (9 * kB) : 0);
    ASSERT_TRUE(plan.ok());
    expect_partition(plan.value(), bytes);
  }
}

TEST(Elbow, IsTheSmallestGroupThatIsFastEnough) {
  const Point curve[] = {{1, 10}, {2, 60}, {4, 96}, {8, 100}, {16, 99}};
  EXPECT_EQ(elbow(curve), 4u);
  EXPECT_EQ(elbow(curve, 0.5), 2u);
  EXPECT_EQ(elbow(curve, 1.0), 8u);
  EXPECT_EQ(elbow({}), 0u);
}

TEST(DeficitRoundRobin, SharesBytesByWeightWhateverTheSizes) {
  DeficitRoundRobin fair(100);
  fair.add(1, 1);
  fair.add(2, 1);
  fair.add(3, 2);
  const uint64_t costs[] = {0, 10, 170, 60};
  uint64_t sent[4] = {};
  for (int i = 0; i < 10000; ++i) {
    const auto flow = fair.next([&](uint64_t number) { return costs[number]; });
    ASSERT_TRUE(flow);
    sent[*flow] += costs[*flow];
  }
  EXPECT_NEAR(static_cast<double>(sent[2]) / static_cast<double>(sent[1]), 1.0, 0.02);
  EXPECT_NEAR(static_cast<double>(sent[3]) / static_cast<double>(sent[1]), 2.0, 0.02);
}

TEST(DeficitRoundRobin, AFlowThatHasNothingSavesNothing) {
  DeficitRoundRobin fair(100);
  EXPECT_FALSE(fair.next([](uint64_t) { return 1; }));
  fair.add(1, 1);
  fair.add(2, 1);
  EXPECT_FALSE(fair.next([](uint64_t) { return 0; }));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(fair.next([](uint64_t flow) { return flow == 1 ? 100 : 0; }), 1u);
  int first = 0;
  for (int i = 0; i < 100; ++i) first += fair.next([](uint64_t) { return 100; }) == 1u;
  EXPECT_NEAR(first, 50, 1);
  fair.remove(1);
  EXPECT_EQ(fair.next([](uint64_t) { return 100; }), 2u);
}

TEST(TokenBucket, BytesAreOwedBeforeMoreAreSent) {
  const auto now = std::chrono::steady_clock::now();
  TokenBucket bucket(1000);
  EXPECT_EQ(bucket.wait(now).count(), 0);
  bucket.spend(500, now);
  bucket.spend(500, now);
  EXPECT_EQ(bucket.wait(now), std::chrono::seconds(1));
  EXPECT_EQ(bucket.wait(now + std::chrono::seconds(1)).count(), 0);
  bucket.spend(1000, now + std::chrono::seconds(9));
  EXPECT_EQ(bucket.wait(now + std::chrono::seconds(9)), std::chrono::seconds(1)) << "nothing is saved up";
  TokenBucket open(0);
  open.spend(1 << 30, now);
  EXPECT_EQ(open.wait(now).count(), 0);
}

}  // namespace
}  // namespace rouse::transfer
