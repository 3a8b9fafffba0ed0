#include "rouse/executor/heap.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "rouse/executor/arena.h"
#include "rouse/executor/lifetime_log.h"

namespace rouse::executor {
namespace {

constexpr std::uint64_t kPlenty = std::uint64_t{1} << 32;

TEST(Heap, BlocksAreAlignedApartAndAsLargeAsAsked) {
  auto heap = Heap::make(kPlenty);
  std::mt19937_64 random(1);
  std::vector<std::pair<unsigned char*, std::size_t>> live;
  for (int i = 0; i < 4000; ++i) {
    if (live.size() > 60 || (!live.empty() && random() % 2)) {
      const std::size_t k = random() % live.size();
      auto [data, bytes] = live[k];
      for (std::size_t b : {std::size_t{0}, bytes / 2, bytes - 1})
        ASSERT_EQ(data[b], static_cast<unsigned char>(bytes));
      free_block(data);
      live.erase(live.begin() + static_cast<long>(k));
    } else {
      const std::size_t bytes = 1 + random() % (random() % 8 ? 3000 : 3000000);
      auto* data = static_cast<unsigned char*>(heap->allocate(bytes).value());
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(data) % kBlockAlignment, 0u);
      std::memset(data, static_cast<unsigned char>(bytes), bytes);
      live.emplace_back(data, bytes);
    }
  }
  for (auto& [data, bytes] : live) free_block(data);
  EXPECT_EQ(heap->stats().live_bytes, 0u);
}

TEST(Heap, AWarmHeapMapsNothing) {
  auto heap = Heap::make(kPlenty);
  auto round = [&] {
    std::vector<void*> blocks;
    for (std::size_t bytes : {64, 100, 4096, 70000, 5000000}) blocks.push_back(heap->allocate(bytes).value());
    for (void* block : blocks) free_block(block);
  };
  round();
  const HeapStats cold = heap->stats();
  for (int i = 0; i < 10; ++i) round();
  EXPECT_EQ(heap->stats().mapped_bytes, cold.mapped_bytes);
  EXPECT_EQ(heap->stats().fresh, cold.fresh);
  EXPECT_EQ(heap->stats().reused, 50u);
}

TEST(Heap, IsBoundedAndSaysSo) {
  auto heap = Heap::make(8 << 20);
  void* half = heap->allocate(5 << 20).value();
  const auto refused = heap->allocate(5 << 20);
  EXPECT_EQ(refused.status().code(), Code::kExhausted);
  free_block(half);
  // What was freed in another class makes room.
  void* other = heap->allocate(6 << 20).value();
  free_block(other);
  EXPECT_EQ(heap->allocate(std::size_t{1} << 60).status().code(), Code::kInvalid);
  heap->trim();
  EXPECT_EQ(heap->stats().mapped_bytes, 0u);
}

TEST(Heap, NoSessionReadsWhatAnotherWrote) {
  constexpr char kSecret[] = "the other function's secret";
  {
    auto first = Heap::make(kPlenty);
    for (std::size_t bytes : {64, 1000, 100000, 8000000}) {
      void* block = first->allocate(bytes).value();
      std::memcpy(block, kSecret, sizeof kSecret);
      free_block(block);
    }
  }
  auto second = Heap::make(kPlenty);
  for (std::size_t bytes : {64, 1000, 100000, 8000000}) {
    void* block = second->allocate(bytes).value();
    EXPECT_EQ(memmem(block, bytes, kSecret, sizeof kSecret), nullptr);
    free_block(block);
  }
  auto shared = Heap::make(kPlenty, true);
  void* block = shared->allocate(1000).value();
  std::memcpy(block, kSecret, sizeof kSecret);
  free_block(block);
  void* again = shared->allocate(1000).value();
  EXPECT_EQ(again, block);
  EXPECT_EQ(memmem(again, 1000, kSecret, sizeof kSecret), nullptr);
  free_block(again);
}

TEST(Heap, OutlivesItsLastBlockAndIsFreedOnAnyThread) {
  auto heap = Heap::make(kPlenty);
  std::vector<void*> blocks;
  for (int i = 0; i < 200; ++i) blocks.push_back(heap->allocate(1 + 331 * i).value());
  std::thread other([&] {
    for (std::size_t i = 0; i < blocks.size(); i += 2) free_block(blocks[i]);
  });
  for (std::size_t i = 1; i < 100; i += 2) free_block(blocks[i]);
  other.join();
  heap.reset();
  for (std::size_t i = 101; i < blocks.size(); i += 2) {
    std::memset(blocks[i], 1, 331 * i);
    free_block(blocks[i]);
  }
}

TEST(HeapDeathTest, FreeingTwiceEndsTheProcess) {
  auto heap = Heap::make(kPlenty);
  void* block = heap->allocate(10).value();
  free_block(block);
  EXPECT_DEATH(free_block(block), "freed twice");
}

// A request as a tape makes it: the n-th step allocates or frees.
struct Step {
  bool allocate;
  std::size_t what;  // bytes, or which block
};

std::vector<Step> random_steps(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Step> steps;
  std::vector<std::size_t> live;
  for (std::size_t made = 0; made < 200;) {
    if (live.size() > 12 || (!live.empty() && random() % 2)) {
      const std::size_t k = random() % live.size();
      steps.push_back({false, live[k]});
      live.erase(live.begin() + static_cast<long>(k));
    } else {
      steps.push_back({true, 1 + random() % 5000});
      live.push_back(made++);
    }
  }
  return steps;
}

TEST(Arena, ReplaysAtPlannedPlacesAndNothingIsOverwritten) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const auto steps = random_steps(seed);
    auto heap = Heap::make(kPlenty);
    auto log = LifetimeLog::make();
    std::vector<void*> blocks;
    for (const Step& step : steps)
      if (step.allocate)
        blocks.push_back(log->allocate(*heap, step.what).value());
      else
        free_block(blocks[step.what]);
    const auto lifetimes = log->finish().value();
    ASSERT_EQ(lifetimes.size(), 200u);
    for (std::size_t i = 0; i < blocks.size(); ++i)
      if (lifetimes[i].until == LifetimeLog::kNeverFreed) free_block(blocks[i]);
    auto plan = plan_of(lifetimes);
    ASSERT_TRUE(plan.ok());
    auto layout = Layout::make(lifetimes, plan.value());
    ASSERT_TRUE(layout.ok()) << layout.status().describe();
    auto arena = Arena::make();
    for (int replay = 0; replay < 3; ++replay) {
      ASSERT_TRUE(arena->begin(layout.value()).ok());
      std::vector<std::pair<unsigned char*, std::size_t>> made;
      std::vector<bool> gone(200);
      for (const Step& step : steps) {
        if (step.allocate) {
          const bool planned = plan.value().offsets[made.size()] != tape::kUnplanned;
          auto* data = static_cast<unsigned char*>(arena->next(step.what));
          ASSERT_EQ(data != nullptr, planned);
          if (!planned) data = static_cast<unsigned char*>(heap->allocate(step.what).value());
          std::memset(data, static_cast<int>(made.size()), step.what);
          made.emplace_back(data, step.what);
        } else {
          auto [data, bytes] = made[step.what];
          for (std::size_t b = 0; b < bytes; ++b) ASSERT_EQ(data[b], static_cast<unsigned char>(step.what));
          free_block(data);
          gone[step.what] = true;
        }
      }
      for (std::size_t i = 0; i < made.size(); ++i)
        if (!gone[i]) free_block(made[i].first);
    }
  }
}

TEST(Arena, WhatDoesNotGoAsPlannedGoesElsewhere) {
  const std::vector<tape::Lifetime> lifetimes{{100, 0, 1}, {100, 2, 3}, {100, 4, 5}};
  auto layout = Layout::make(lifetimes, plan_of(lifetimes).value());
  ASSERT_TRUE(layout.ok());
  auto arena = Arena::make();
  ASSERT_TRUE(arena->begin(layout.value()).ok());
  void* held = arena->next(100);
  ASSERT_NE(held, nullptr);
  EXPECT_EQ(arena->next(100), nullptr) << "the place of a block that still lives";
  EXPECT_EQ(arena->next(100), nullptr) << "after a miss nothing is as planned";
  EXPECT_EQ(arena->begin(layout.value()).code(), Code::kRefused);
  free_block(held);
  ASSERT_TRUE(arena->begin(layout.value()).ok());
  EXPECT_EQ(arena->next(101), nullptr) << "another size";
  ASSERT_TRUE(arena->begin(layout.value()).ok());
  held = arena->next(100);
  arena.reset();
  std::memset(held, 1, 100);
  free_block(held);
}

}  // namespace
}  // namespace rouse::executor
