// What is held of a device beside the weights: its limit, and the most that it was.
#include "rouse/executor/account.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rouse/executor/arena.h"
#include "rouse/executor/heap.h"
#include "rouse/executor/lifetime_log.h"

namespace rouse::executor {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

TEST(Account, TakesAllOrNothingAndRemembersTheMost) {
  Account account(10);
  EXPECT_TRUE(account.take(6));
  EXPECT_FALSE(account.take(5));
  EXPECT_EQ(account.held(), 6u);
  EXPECT_TRUE(account.take(4));
  account.give(9);
  EXPECT_EQ(account.held(), 1u);
  EXPECT_EQ(account.most(), 10u);
  EXPECT_FALSE(account.take(~std::uint64_t{0})) << "and does not overflow";
}

TEST(Account, TheWholeIsTheSumOfItsParts) {
  const auto whole = std::make_shared<Account>(Account::kNoLimit);
  Account one(10, whole);
  Account other(10, whole);
  EXPECT_TRUE(one.take(7));
  EXPECT_TRUE(other.take(8));
  EXPECT_FALSE(other.take(8));
  one.give(7);
  EXPECT_TRUE(one.take(2));
  EXPECT_EQ(whole->held(), 10u);
  EXPECT_EQ(whole->most(), 15u);
}

TEST(Account, ManyThreadsNeverPassTheLimit) {
  Account account(64);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 20'000; ++n)
        if (account.take(17)) account.give(17);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(account.held(), 0u);
  EXPECT_LE(account.most(), 64u);
}

TEST(Account, AHeapIsCountedToThePageAndGivesAllBack) {
  const auto account = std::make_shared<Account>(64 * kMiB);
  {
    const auto heap = Heap::make(account);
    void* small = heap->allocate(100).value();
    void* large = heap->allocate(5 * kMiB).value();
    EXPECT_EQ(account->held(), heap->stats().mapped_bytes);
    EXPECT_GE(account->held(), 5 * kMiB + 100);
    free_block(large);
    EXPECT_EQ(account->held(), heap->stats().mapped_bytes) << "kept for the next request";
    heap->trim();
    EXPECT_LT(account->held(), kMiB);
    free_block(small);
  }
  EXPECT_EQ(account->held(), 0u);
  EXPECT_GE(account->most(), 5 * kMiB + 100);
}

TEST(Account, WhatIsRefusedSaysHowMuchWasWantedAndWhatToDo) {
  const auto heap = Heap::make(std::make_shared<Account>(8 * kMiB));
  const auto refused = heap->allocate(9 * kMiB);
  ASSERT_EQ(refused.status().code(), Code::kExhausted);
  const std::string text = refused.status().text();
  EXPECT_NE(text.find("9437184 bytes"), std::string::npos) << text;
  EXPECT_NE(text.find("8388608"), std::string::npos) << text;
  EXPECT_NE(text.find("`working_memory_bytes`"), std::string::npos) << text;
  free_block(heap->allocate(7 * kMiB).value());
}

TEST(Account, ASmallLimitIsUsedToItsLastPage) {
  const auto heap = Heap::make(std::make_shared<Account>(12 << 10));
  std::vector<void*> blocks;
  for (auto block = heap->allocate(1 << 10); block.ok(); block = heap->allocate(1 << 10))
    blocks.push_back(block.value());
  EXPECT_GE(blocks.size(), 9u);
  for (void* block : blocks) free_block(block);
}

class Planned : public ::testing::Test {
 protected:
  // One block of 4 MiB.
  const std::vector<tape::Lifetime> lifetimes_{{4 * kMiB, 0, 1}};
  const Layout layout_ = Layout::make(lifetimes_, plan_of(lifetimes_).value()).value();
  const std::shared_ptr<Account> account_ = std::make_shared<Account>(8 * kMiB);
};

TEST_F(Planned, AnArenaSharesTheAccountAndMakesRoomForTheHeap) {
  const auto heap = Heap::make(account_);
  const auto arena = Arena::make();
  ASSERT_TRUE(arena->prepare(layout_, account_).ok());
  EXPECT_EQ(account_->held(), arena->mapped_bytes());
  EXPECT_GE(account_->held(), 4 * kMiB);
  // Where nothing lives in it, a request that fits by itself is not refused for its sake.
  void* block = heap->allocate(6 * kMiB).value();
  EXPECT_EQ(arena->mapped_bytes(), 0u);
  EXPECT_EQ(arena->begin(layout_, account_).code(), Code::kExhausted);
  free_block(block);
  heap->trim();
  EXPECT_TRUE(arena->begin(layout_, account_).ok());
}

TEST_F(Planned, AnArenaInUseIsNotTakenAway) {
  const auto heap = Heap::make(account_);
  const auto arena = Arena::make();
  ASSERT_TRUE(arena->begin(layout_, account_).ok());
  EXPECT_EQ(heap->allocate(6 * kMiB).status().code(), Code::kExhausted) << "the replay has not made its block yet";
  void* block = arena->next(4 * kMiB);
  ASSERT_NE(block, nullptr);
  (void)arena->finish();
  EXPECT_EQ(heap->allocate(6 * kMiB).status().code(), Code::kExhausted);
  free_block(block);
  free_block(heap->allocate(6 * kMiB).value());
}

TEST_F(Planned, AnArenaThatEndsGivesBackWhatItHeld) {
  auto arena = Arena::make();
  ASSERT_TRUE(arena->begin(layout_, account_).ok());
  void* block = arena->next(4 * kMiB);
  arena.reset();
  EXPECT_GE(account_->held(), 4 * kMiB);
  free_block(block);
  EXPECT_EQ(account_->held(), 0u);
  EXPECT_EQ(account_->spare(), nullptr);
}

}  // namespace
}  // namespace rouse::executor
