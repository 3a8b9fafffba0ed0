#include "rouse/tape/plan.h"

#include <gtest/gtest.h>

#include <random>

namespace rouse::tape {
namespace {

// As a tape makes them: allocations and frees in some order, most blocks short-lived.
std::vector<Lifetime> random_lifetimes(std::mt19937_64& random, std::size_t count) {
  std::vector<Lifetime> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    const auto from = static_cast<std::uint32_t>(random() % (2 * count));
    const auto length = 1 + random() % (random() % 8 ? 6 : count);
    const std::uint64_t bytes = random() % 4 ? random() % 300 : random() % 70000;
    blocks.push_back({bytes, from, static_cast<std::uint32_t>(from + length)});
  }
  return blocks;
}

bool overlap_anywhere(const std::vector<Lifetime>& blocks, const Plan& plan) {
  for (std::size_t a = 0; a < blocks.size(); ++a)
    for (std::size_t b = 0; b < a; ++b)
      if (blocks[a].from < blocks[b].until && blocks[b].from < blocks[a].until &&
          plan.offsets[a] < plan.offsets[b] + planned_bytes(blocks[b].bytes) &&
          plan.offsets[b] < plan.offsets[a] + planned_bytes(blocks[a].bytes))
        return true;
  return false;
}

TEST(Plan, NothingThatLivesTogetherOverlaps) {
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto blocks = random_lifetimes(random, 1 + random() % 120);
    const auto plan = make_plan(blocks);
    ASSERT_TRUE(plan.ok()) << plan.status().describe();
    EXPECT_FALSE(overlap_anywhere(blocks, plan.value())) << "seed " << seed;
    EXPECT_TRUE(check_plan(blocks, plan.value()).ok()) << "seed " << seed;
    EXPECT_GE(plan.value().bytes, most_live(blocks));
    worst = std::max(worst, double(plan.value().bytes) / double(most_live(blocks)));
  }
  EXPECT_LE(worst, 1.5) << "over the least that any plan needs";
}

TEST(Plan, TheCheckFindsWhatBruteForceFinds) {
  int bad = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto blocks = random_lifetimes(random, 2 + random() % 40);
    Plan plan = make_plan(blocks).value();
    plan.offsets[random() % blocks.size()] = random() % (plan.bytes / kPlanAlignment) * kPlanAlignment;
    for (std::size_t i = 0; i < blocks.size(); ++i)
      plan.bytes = std::max(plan.bytes, plan.offsets[i] + planned_bytes(blocks[i].bytes));
    EXPECT_EQ(check_plan(blocks, plan).ok(), !overlap_anywhere(blocks, plan)) << "seed " << seed;
    bad += overlap_anywhere(blocks, plan);
  }
  EXPECT_GT(bad, 20);
}

TEST(Plan, AChainNeedsTwoBlocks) {
  std::vector<Lifetime> chain;
  for (std::uint32_t i = 0; i < 100; ++i) chain.push_back({4096, 2 * i, 2 * i + 3});
  EXPECT_EQ(make_plan(chain).value().bytes, 2 * 4096);
}

TEST(Plan, RefusesWhatCannotBe) {
  const std::vector<Lifetime> backwards{{8, 5, 5}};
  EXPECT_EQ(make_plan(backwards).status().code(), Code::kInvalid);
  const std::vector<Lifetime> huge{{~std::uint64_t{0} - 8, 0, 1}};
  EXPECT_EQ(make_plan(huge).status().code(), Code::kInvalid);
  EXPECT_EQ(make_plan(std::vector<Lifetime>(kMaxPlanned + 1, {8, 0, 1})).status().code(), Code::kExhausted);
  const std::vector<Lifetime> one{{64, 0, 1}};
  EXPECT_EQ(check_plan(one, {{64}, 64}).code(), Code::kMismatch);
  EXPECT_EQ(check_plan(one, {{32}, 256}).code(), Code::kMismatch);
  EXPECT_EQ(check_plan(one, {{}, 64}).code(), Code::kMismatch);
  EXPECT_TRUE(check_plan(one, {{kUnplanned}, 0}).ok());
}

}  // namespace
}  // namespace rouse::tape
