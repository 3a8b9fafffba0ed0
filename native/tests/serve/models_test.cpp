// Models on a host device: swaps that go on after they were asked for, and what is left when they end.
#include "models.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "rouse/base/file.h"
#include "rouse/device/host.h"
#include "rouse/tape/tape.h"
#include "test_base.h"

namespace rouse::serve {
namespace {

using device::kTestBase;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kCapacity = 64 * kMiB;
constexpr uint64_t kGroup = 64 << 10;
// Of a link that copies 16 MiB in 4 s: what is tested comes long before its end.
constexpr uint64_t kSlow = 4 * kMiB;

transfer::Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

template <typename T>
std::string reason(const Answer<T>& answer) {
  const auto* error = std::get_if<RpcError>(&answer);
  return error ? error->reason : "";
}

class ModelsTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/rouse-models-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    make(0);
  }
  void TearDown() override {
    models_.reset();
    for (const std::string& path : files_) ::unlink(path.c_str());
    ::rmdir(folder_.c_str());
  }
  void make(uint64_t bytes_per_second, bool pin_images = false) {
    models_.reset();
    auto device = device::make_host_device({.capacity = kCapacity});
    ASSERT_TRUE(device.ok()) << device.status().describe();
    ModelsOptions options;
    options.group_bytes = kGroup;
    options.link.bytes_per_second = bytes_per_second;
    options.pin_images = pin_images;
    auto made = Models::make(std::move(device).value(), options);
    ASSERT_TRUE(made.ok()) << made.status().describe();
    models_ = std::move(made).value();
  }
  // A model whose image has another number in every 64 bytes.
  ModelSpec model(const std::string& id, uint64_t base, uint64_t bytes) {
    const std::string path = folder_ + "/" + id;
    std::vector<char> image(bytes);
    uint64_t number = base + bytes;
    for (uint64_t at = 0; at + 8 <= bytes; at += 64) std::memcpy(image.data() + at, &++number, 8);
    std::ofstream(path, std::ios::binary).write(image.data(), static_cast<std::streamsize>(bytes));
    files_.push_back(path);
    images_[id] = std::move(image);
    return {id, "at-" + id, base, bytes, path, "", {}, ""};
  }
  bool same(const ModelSpec& spec, uint64_t offset, uint64_t bytes) {
    return std::memcmp(reinterpret_cast<const char*>(spec.base + offset), images_[spec.version_id].data() + offset,
                       bytes) == 0;
  }
  std::shared_ptr<transfer::Residency> residency(const ModelSpec& spec) {
    return models_->find(spec.version_id)->residency;
  }
  void expect_idle(uint64_t mapped) {
    const MemoryInfo memory = models_->memory();
    EXPECT_EQ(memory.mapped_bytes, mapped);
    EXPECT_EQ(memory.free_bytes, kCapacity - mapped);
    EXPECT_TRUE(models_->check().ok()) << models_->check().describe();
  }

  std::string folder_;
  std::vector<std::string> files_;
  std::map<std::string, std::vector<char>> images_;
  std::unique_ptr<Models> models_;
};

TEST_F(ModelsTest, AModelComesWholeAndGoes) {
  const ModelSpec spec = model("a", kTestBase, 5 * kMiB + 123);
  ASSERT_EQ(reason(models_->map(spec)), "");
  ASSERT_TRUE(residency(spec)->wait_ready(spec.base, spec.bytes, soon()).ok());
  EXPECT_TRUE(same(spec, 0, spec.bytes));
  // Behind the image another model's bytes could be read.
  const char* const tail = reinterpret_cast<const char*>(spec.base + spec.bytes);
  EXPECT_TRUE(std::all_of(tail, tail + (6 * kMiB - spec.bytes), [](char c) { return c == 0; }));
  expect_idle(6 * kMiB);
  EXPECT_EQ(std::get<uint64_t>(models_->unmap("a")), 6 * kMiB);
  expect_idle(0);
  EXPECT_EQ(std::get<uint64_t>(models_->unmap("a")), 0u);
}

TEST_F(ModelsTest, APinnedImageIsKeptUntilAnotherFileIsInItsPlace) {
  make(0, true);
  ModelSpec spec = model("a", kTestBase, 2 * kMiB);
  const auto comes = [&] {
    ASSERT_EQ(reason(models_->map(spec)), "");
    ASSERT_TRUE(residency(spec)->wait_ready(spec.base, spec.bytes, soon()).ok());
    EXPECT_TRUE(same(spec, 0, spec.bytes));
    EXPECT_EQ(std::get<uint64_t>(models_->unmap("a")), 2 * kMiB);
  };
  for (int i = 0; i < 2; ++i) comes();
  // A version that came back from disk has an image of that name, but not that one.
  ::unlink(spec.image_path.c_str());
  spec = model("a", kTestBase, 2 * kMiB);
  images_["a"][0] ^= 1;
  std::ofstream(spec.image_path, std::ios::binary).write(images_["a"].data(), 2 * kMiB);
  comes();
  expect_idle(0);
}

TEST_F(ModelsTest, WhatATapeUsesFirstComesFirst) {
  make(kSlow);
  ModelSpec spec = model("a", kTestBase, 4 * kMiB);
  tape::Tape tape;
  tape.origin.model_base = spec.base;
  tape.origin.model_bytes = spec.bytes;
  tape.places = {{tape::Class::kWeight, false, 3 * kMiB, kMiB / 2}};
  tape.outputs = {{0, 6, 0, 0, {2}, {1}}};
  const auto file = tape::save(tape);
  ASSERT_TRUE(file.ok()) << file.status().describe();
  spec.order_path = folder_ + "/tape";
  files_.push_back(spec.order_path);
  ASSERT_TRUE(write_whole(spec.order_path, file.value()).ok());
  ASSERT_EQ(reason(models_->map(spec)), "");
  const auto there = residency(spec);
  for (const auto until = soon(); !there->all_ready() && std::chrono::steady_clock::now() < until;) {
    const bool other = there->is_ready(spec.base + 2 * kMiB, 1000);
    ASSERT_TRUE(!other || there->is_ready(spec.base + 3 * kMiB, kMiB / 2));
  }
  EXPECT_TRUE(same(spec, 0, spec.bytes));
  models_->unmap("a");
  // Of another layout, or no tape: it comes all the same.
  make(0);
  spec.layout = "another";
  for (const std::string& path : {spec.order_path, spec.image_path, folder_ + "/none"}) {
    spec.order_path = path;
    ASSERT_EQ(reason(models_->map(spec)), "");
    ASSERT_TRUE(residency(spec)->wait_ready(spec.base, spec.bytes, soon()).ok());
    EXPECT_TRUE(same(spec, 0, spec.bytes));
    models_->unmap("a");
  }
}

TEST_F(ModelsTest, MappingAnswersWhileTheSwapGoesOn) {
  make(kSlow);
  const ModelSpec spec = model("a", kTestBase, 16 * kMiB);
  ASSERT_EQ(reason(models_->map(spec)), "");
  const auto there = residency(spec);
  EXPECT_FALSE(there->all_ready());
  // What is asked for comes next, not in its order.
  ASSERT_TRUE(there->wait_ready(spec.base + 15 * kMiB, 1000, soon()).ok());
  EXPECT_TRUE(same(spec, 15 * kMiB, 1000));
  const SwapInfo swap = models_->swap("a");
  EXPECT_GT(swap.resident_bytes, 0u);
  EXPECT_LT(swap.resident_bytes, spec.bytes);
  EXPECT_EQ(swap.failure, "");
  expect_idle(16 * kMiB);
}

TEST_F(ModelsTest, GroupsSayWhatComesFirst) {
  make(kSlow);
  ModelSpec spec = model("a", kTestBase, 16 * kMiB);
  spec.groups = {{12 * kMiB, kMiB}, {0, kMiB}};
  ASSERT_EQ(reason(models_->map(spec)), "");
  const auto there = residency(spec);
  const auto until = soon();
  while (!there->is_ready(spec.base + 12 * kMiB, 1) && std::chrono::steady_clock::now() < until) {
    ASSERT_FALSE(there->is_ready(spec.base, 1)) << "the front came before what was to come first";
    std::this_thread::yield();
  }
  EXPECT_TRUE(there->is_ready(spec.base + 12 * kMiB, 1));
}

TEST_F(ModelsTest, UnmappingEndsTheSwapAndTellsWhoWaits) {
  make(kSlow);
  const ModelSpec spec = model("a", kTestBase, 16 * kMiB);
  ASSERT_EQ(reason(models_->map(spec)), "");
  const auto there = residency(spec);
  Status waited;
  std::thread waiter([&] { waited = there->wait_ready(spec.base, spec.bytes, soon()); });
  models_->cancel("a");
  waiter.join();
  EXPECT_EQ(waited.code(), Code::kCancelled) << waited.describe();
  EXPECT_NE(models_->swap("a").failure, "");
  // Its range is gone for good: a byte that was still copied would end this process.
  EXPECT_EQ(std::get<uint64_t>(models_->unmap("a")), 16 * kMiB);
  expect_idle(0);
  const ModelSpec next = model("b", kTestBase, 2 * kMiB);
  ASSERT_EQ(reason(models_->map(next)), "");
  ASSERT_TRUE(residency(next)->wait_ready(next.base, next.bytes, soon()).ok());
  EXPECT_TRUE(same(next, 0, next.bytes));
}

TEST_F(ModelsTest, WhatFailsHalfWayIsGivenBack) {
  const ModelSpec there = model("a", kTestBase, 4 * kMiB);
  ASSERT_EQ(reason(models_->map(there)), "");
  ModelSpec spec = model("b", kTestBase + (1 << 30), 2 * kMiB);
  spec.image_path = folder_ + "/none";
  EXPECT_EQ(reason(models_->map(spec)), "IMAGE_NOT_FOUND");
  spec = model("c", kTestBase + (1 << 30), 2 * kMiB);
  spec.bytes = 3 * kMiB;
  EXPECT_EQ(reason(models_->map(spec)), "BAD_RANGE") << "an image that is too short";
  spec.bytes = 2 * kMiB;
  spec.base = kTestBase;
  EXPECT_EQ(reason(models_->map(spec)), "RANGE_TAKEN");
  spec.base = kTestBase + (1 << 30) + 4096;
  EXPECT_EQ(reason(models_->map(spec)), "BAD_RANGE");
  spec.base = kTestBase + (1 << 30);
  spec.bytes = kCapacity;
  EXPECT_EQ(reason(models_->map(spec)), "DEVICE_MEMORY_FULL");
  spec.bytes = 2 * kMiB;
  spec.groups = {{kMiB, 2 * kMiB}};
  EXPECT_EQ(reason(models_->map(spec)), "BAD_RANGE") << "a group that reaches past the image";
  expect_idle(4 * kMiB);
}

TEST_F(ModelsTest, WithoutAnImageNothingOfAnotherModelIsThere) {
  const ModelSpec first = model("a", kTestBase, 4 * kMiB);
  ASSERT_EQ(reason(models_->map(first)), "");
  ASSERT_TRUE(residency(first)->wait_ready(first.base, first.bytes, soon()).ok());
  ASSERT_EQ(std::get<uint64_t>(models_->unmap("a")), 4 * kMiB);
  ASSERT_EQ(reason(models_->map({"z", "at", kTestBase, 4 * kMiB, "", "", {}, ""})), "");
  EXPECT_EQ(models_->find("z")->residency, nullptr);
  const char* const bytes = reinterpret_cast<const char*>(kTestBase);
  EXPECT_TRUE(std::all_of(bytes, bytes + 4 * kMiB, [](char c) { return c == 0; }));
}

TEST_F(ModelsTest, TheAccountAddsUpWhateverIsMappedUnmappedAndCancelled) {
  make(256 * kMiB);
  std::vector<ModelSpec> specs;
  for (uint64_t i = 0; i < 6; ++i) {
    specs.push_back(model("m" + std::to_string(i), kTestBase + (i << 30), (i + 1) * 3 * kMiB + i * 777));
  }
  std::mt19937_64 random(5);
  std::map<std::string, uint64_t> mapped;
  uint64_t bytes = 0;
  for (int step = 0; step < 200; ++step) {
    const ModelSpec& spec = specs[random() % specs.size()];
    if (!mapped.contains(spec.version_id)) {
      const std::string refused = reason(models_->map(spec));
      if (refused.empty()) {
        mapped[spec.version_id] = (spec.bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
        bytes += mapped[spec.version_id];
      } else {
        EXPECT_EQ(refused, "DEVICE_MEMORY_FULL");
      }
    } else if (random() % 3 == 0) {
      const uint64_t offset = random() % (spec.bytes - 100);
      ASSERT_TRUE(residency(spec)->wait_ready(spec.base + offset, 100, soon()).ok());
      ASSERT_TRUE(same(spec, offset, 100));
    } else {
      bytes -= mapped[spec.version_id];
      EXPECT_EQ(std::get<uint64_t>(models_->unmap(spec.version_id)), mapped[spec.version_id]);
      mapped.erase(spec.version_id);
    }
    expect_idle(bytes);
  }
}

TEST_F(ModelsTest, TheGroupSizeIsMeasuredWhereNobodyGivesIt) {
  if (kTestBase != device::kModelBase) GTEST_SKIP() << "the thread sanitizer has other things at models' addresses";
  auto device = device::make_host_device({.capacity = kCapacity});
  ASSERT_TRUE(device.ok());
  models_.reset();
  auto made = Models::make(std::move(device).value(), {});
  ASSERT_TRUE(made.ok()) << made.status().describe();
  models_ = std::move(made).value();
  EXPECT_GE(models_->memory().group_bytes, 64u << 10);
  EXPECT_LE(models_->memory().group_bytes, 4u << 20);
  expect_idle(0);
}

}  // namespace
}  // namespace rouse::serve
