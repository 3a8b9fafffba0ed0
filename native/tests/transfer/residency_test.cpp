#include "rouse/transfer/residency.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

namespace rouse::transfer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kBase = 0x5000'0000'0000;

Deadline in(std::chrono::nanoseconds time) { return std::chrono::steady_clock::now() + time; }

TEST(Residency, WhatWasPublishedIsReadyAndNothingElse) {
  Residency residency(kBase, 10 * kBlockBytes + 5);
  EXPECT_FALSE(residency.is_ready(kBase, 1));
  residency.publish(2 * kBlockBytes, 3 * kBlockBytes);
  EXPECT_TRUE(residency.is_ready(kBase + 2 * kBlockBytes, 3 * kBlockBytes));
  EXPECT_FALSE(residency.is_ready(kBase + 2 * kBlockBytes, 3 * kBlockBytes + 1));
  EXPECT_FALSE(residency.is_ready(kBase + 2 * kBlockBytes - 1, 2));
  residency.publish(10 * kBlockBytes, 5);  // the last block is short
  EXPECT_TRUE(residency.is_ready(kBase + 10 * kBlockBytes + 4, 1));
  EXPECT_FALSE(residency.all_ready());
  residency.finish();
  EXPECT_TRUE(residency.is_ready(kBase, residency.bytes()));
}

TEST(Residency, ABlockThatArrivedInPartIsNotReady) {
  Residency residency(kBase, 4 * kBlockBytes);
  residency.publish(10, kBlockBytes);
  EXPECT_FALSE(residency.is_ready(kBase + 10, 1));
}

TEST(Residency, AddressesOutsideAreRefused) {
  Residency residency(kBase, 100);
  for (const auto& [address, bytes] : {std::pair<uint64_t, uint64_t>{kBase - 1, 1},
                                       {kBase, 101},
                                       {kBase + 100, 1},
                                       {kBase + 1, ~uint64_t{0}},
                                       {~uint64_t{0}, 2}}) {
    EXPECT_EQ(residency.wait_ready(address, bytes, in(seconds(1))).code(), Code::kInvalid);
    EXPECT_FALSE(residency.is_ready(address, bytes));
  }
  residency.finish();
  EXPECT_EQ(residency.wait_ready(kBase, 101, in(seconds(1))).code(), Code::kInvalid);
  const int64_t rows[] = {-1};
  EXPECT_EQ(residency.wait_rows(kBase, 10, rows, in(seconds(1))).code(), Code::kInvalid);
  const int64_t beyond[] = {10};
  EXPECT_EQ(residency.wait_rows(kBase, 10, beyond, in(seconds(1))).code(), Code::kInvalid);
}

TEST(Residency, AWaitEndsAtItsDeadline) {
  Residency residency(kBase, 100);
  EXPECT_EQ(residency.wait_ready(kBase, 1, in(milliseconds(5))).code(), Code::kDeadline);
  EXPECT_EQ(residency.waits(), 1u);
  EXPECT_GT(residency.waited().count(), 0);
}

TEST(Residency, FailureReachesWhoeverWaitsButNotWhatHasArrived) {
  Residency residency(kBase, 2 * kBlockBytes);
  residency.publish(0, kBlockBytes);
  std::thread waiter([&] {
    const Status status = residency.wait_ready(kBase + kBlockBytes, 1, in(seconds(20)));
    EXPECT_EQ(status.code(), Code::kCancelled);
  });
  residency.fail(Status(Code::kCancelled, "told to stop"));
  waiter.join();
  EXPECT_TRUE(residency.wait_ready(kBase, kBlockBytes, in(seconds(1))).ok());
}

TEST(Residency, WhatIsWaitedForIsDemandedByBlocks) {
  Residency residency(kBase, 100 * kBlockBytes);
  EXPECT_FALSE(residency.next_demand(1 << 20));
  EXPECT_FALSE(residency.wait_ready(kBase + kBlockBytes + 1, 2 * kBlockBytes, in(milliseconds(0))).ok());
  EXPECT_EQ(residency.next_demand(1 << 20), (Extent{kBlockBytes, 3 * kBlockBytes}));
  EXPECT_EQ(residency.next_demand(1), (Extent{kBlockBytes, kBlockBytes}));
  residency.publish(2 * kBlockBytes, kBlockBytes);
  residency.publish(kBlockBytes, kBlockBytes);
  EXPECT_EQ(residency.next_demand(1 << 20), (Extent{3 * kBlockBytes, kBlockBytes}));
  residency.publish(3 * kBlockBytes, kBlockBytes);
  EXPECT_FALSE(residency.next_demand(1 << 20));
}

TEST(Residency, RowsOfATableAreReadyWithoutTheRest) {
  Residency residency(kBase, 64 * kBlockBytes);
  const int64_t rows[] = {0, 33, 0, 60};
  std::thread copier([&] {
    while (!residency.is_ready(kBase + 60 * kBlockBytes, kBlockBytes)) {
      if (const auto wanted = residency.next_demand(kBlockBytes)) residency.publish(wanted->offset, wanted->bytes);
      std::this_thread::yield();
    }
  });
  EXPECT_TRUE(residency.wait_rows(kBase, kBlockBytes, rows, in(seconds(20))).ok());
  copier.join();
  EXPECT_TRUE(residency.is_ready(kBase + 33 * kBlockBytes, kBlockBytes));
  EXPECT_FALSE(residency.is_ready(kBase + 34 * kBlockBytes, 1));
}

TEST(Residency, FirstMissingFindsEveryGap) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const uint64_t blocks = 1 + random() % 300;
    Residency residency(kBase, blocks * kBlockBytes);
    std::vector<bool> there(blocks);
    for (uint64_t block = 0; block < blocks; ++block) {
      if (random() % 3) residency.publish(block * kBlockBytes, kBlockBytes), there[block] = true;
    }
    uint64_t missing = 0;
    while (const auto gap = residency.first_missing({0, blocks * kBlockBytes})) {
      for (uint64_t block = gap->offset / kBlockBytes; block < (gap->offset + gap->bytes) / kBlockBytes; ++block) {
        EXPECT_FALSE(there[block]);
        ++missing;
      }
      residency.publish(gap->offset, gap->bytes);
    }
    EXPECT_EQ(missing, static_cast<uint64_t>(std::count(there.begin(), there.end(), false)));
  }
}

TEST(Residency, ManyWaitersSeeTheBytesThatWerePublished) {
  constexpr uint64_t kBlocks = 200;
  Residency residency(kBase, kBlocks * kBlockBytes);
  std::vector<int> data(kBlocks);  // stands for the device's memory: not atomic, on purpose
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&, reader] {
      std::mt19937_64 random(reader);
      for (int step = 0; step < 300; ++step) {
        const uint64_t block = random() % kBlocks;
        ASSERT_TRUE(residency.wait_ready(kBase + block * kBlockBytes, kBlockBytes, in(seconds(60))).ok());
        EXPECT_EQ(data[block], 1);
      }
    });
  }
  while (const auto missing = residency.first_missing({0, kBlocks * kBlockBytes})) {
    auto next = residency.next_demand(kBlockBytes).value_or(Extent{missing->offset, kBlockBytes});
    data[next.offset / kBlockBytes] = 1;
    residency.publish(next.offset, next.bytes);
  }
  residency.finish();
  for (auto& reader : readers) reader.join();
}

}  // namespace
}  // namespace rouse::transfer
