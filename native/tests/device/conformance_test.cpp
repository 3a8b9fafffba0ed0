// What every device promises. One suite for all kinds: `cuda` runs it where there is a GPU, and its calls are checked
// everywhere against a stand-in for the driver.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device.h"
#include "rouse/device/cuda.h"
#include "rouse/device/device.h"
#include "rouse/device/host.h"
#include "test_base.h"

namespace rouse::device {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kCapacity = 64 * kMiB;

Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(30); }

struct Kind {
  std::string name;
  std::function<Result<std::unique_ptr<Device>>(uint64_t capacity)> make;
};

class Conformance : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    auto made = GetParam().make(kCapacity);
    if (!made.ok() && made.status().code() == Code::kUnsupported) GTEST_SKIP() << made.status().describe();
    ASSERT_TRUE(made.ok()) << made.status().describe();
    device_ = std::move(made).value();
    piece_ = device_->granularity();
  }

  ChunkId create(uint64_t bytes) {
    auto chunk = device_->create(bytes);
    EXPECT_TRUE(chunk.ok()) << chunk.status().describe();
    return chunk.ok() ? chunk.value() : ChunkId{};
  }
  void wait(Stream& stream) {
    auto event = stream.record();
    ASSERT_TRUE(event.ok());
    EXPECT_TRUE(event.value()->wait(soon()).ok());
    EXPECT_TRUE(event.value()->query().ok());
  }
  std::vector<char> read(Stream& stream, uint64_t from, uint64_t bytes) {
    std::vector<char> data(bytes);
    EXPECT_TRUE(stream.copy_out(data.data(), from, bytes).ok());
    wait(stream);
    return data;
  }

  std::unique_ptr<Device> device_;
  uint64_t piece_ = 0;
};

TEST_P(Conformance, ARangeIsWhereItWasAskedForOrRefused) {
  ASSERT_TRUE(device_->reserve(kTestBase, 4 * piece_).ok());
  EXPECT_EQ(device_->reserve(kTestBase + piece_, piece_).code(), Code::kMismatch);
  EXPECT_EQ(device_->reserve(kTestBase + 1, piece_).code(), Code::kInvalid);
  EXPECT_EQ(device_->reserve(kTestBase + 8 * piece_, piece_ + 1).code(), Code::kInvalid);
  EXPECT_EQ(device_->reserve(0, piece_).code(), Code::kInvalid);
  EXPECT_EQ(device_->reserve(kTestBase, ~uint64_t{0} / piece_ * piece_).code(), Code::kInvalid);
  ASSERT_TRUE(device_->release(kTestBase).ok());
  EXPECT_EQ(device_->release(kTestBase).code(), Code::kNotFound);
  ASSERT_TRUE(device_->reserve(kTestBase, 4 * piece_).ok());
}

TEST_P(Conformance, AnAddressThatSomebodyElseHasIsRefused) {
  const uint64_t bytes = 4 * piece_;
  void* taken =
      mmap(reinterpret_cast<void*>(kTestBase), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_EQ(taken, reinterpret_cast<void*>(kTestBase));
  EXPECT_EQ(device_->reserve(kTestBase, bytes).code(), Code::kMismatch);
  EXPECT_EQ(device_->reserve(kTestBase - piece_, 2 * piece_).code(), Code::kMismatch);
  munmap(taken, bytes);
  EXPECT_TRUE(device_->reserve(kTestBase, bytes).ok());
}

TEST_P(Conformance, ChunksOfSeveralSizesLieSideBySideAndKeepTheirBytes) {
  auto stream = device_->make_stream();
  ASSERT_TRUE(stream.ok());
  Stream& copies = *stream.value();
  ASSERT_TRUE(device_->reserve(kTestBase, 16 * piece_).ok());
  const uint64_t sizes[] = {1, 4, 2};
  std::vector<ChunkId> chunks;
  uint64_t at = kTestBase + piece_;
  for (uint64_t size : sizes) {
    chunks.push_back(create(size * piece_));
    ASSERT_TRUE(device_->map(chunks.back(), at).ok());
    at += size * piece_;
  }
  std::vector<char> data(7 * piece_);
  std::mt19937_64 random(1);
  for (size_t i = 0; i + 8 <= data.size(); i += 8) {
    const uint64_t value = random();
    std::memcpy(&data[i], &value, 8);
  }
  ASSERT_TRUE(copies.copy_in(kTestBase + piece_, data.data(), data.size()).ok());
  EXPECT_EQ(read(copies, kTestBase + piece_, data.size()), data);

  // Mapped elsewhere, a chunk has the same bytes.
  ASSERT_TRUE(device_->unmap(chunks[1]).ok());
  ASSERT_TRUE(device_->map(chunks[1], kTestBase + 10 * piece_).ok());
  EXPECT_EQ(read(copies, kTestBase + 10 * piece_, 4 * piece_),
            std::vector<char>(data.begin() + static_cast<long>(piece_), data.begin() + static_cast<long>(5 * piece_)));

  ASSERT_TRUE(copies.zero(kTestBase + 10 * piece_ + 3, 5).ok());
  EXPECT_EQ(read(copies, kTestBase + 10 * piece_ + 3, 5), std::vector<char>(5, 0));
  EXPECT_EQ(copies.copy_in(kTestBase + 2 * piece_, data.data(), piece_).code(), Code::kInvalid) << "nothing is mapped";
  EXPECT_EQ(copies.copy_in(kTestBase + piece_, data.data(), 2 * piece_).code(), Code::kInvalid) << "half is mapped";
  EXPECT_EQ(copies.zero(kTestBase, 1).code(), Code::kInvalid);
  EXPECT_EQ(copies.copy_out(data.data(), kTestBase + 16 * piece_ - 1, 2).code(), Code::kInvalid);
}

TEST_P(Conformance, MappingIsRefusedWhereItMakesNoSense) {
  ASSERT_TRUE(device_->reserve(kTestBase, 4 * piece_).ok());
  const ChunkId chunk = create(2 * piece_), other = create(piece_);
  EXPECT_EQ(device_->map(chunk, kTestBase + 3 * piece_).code(), Code::kInvalid) << "beyond the end";
  EXPECT_EQ(device_->map(chunk, kTestBase - piece_).code(), Code::kInvalid) << "before the start";
  EXPECT_EQ(device_->map(chunk, kTestBase + 1).code(), Code::kInvalid) << "no boundary";
  EXPECT_EQ(device_->unmap(chunk).code(), Code::kRefused);
  ASSERT_TRUE(device_->map(chunk, kTestBase).ok());
  EXPECT_EQ(device_->map(chunk, kTestBase + 2 * piece_).code(), Code::kRefused) << "mapped already";
  EXPECT_EQ(device_->map(other, kTestBase + piece_).code(), Code::kRefused) << "taken";
  EXPECT_EQ(device_->destroy(chunk).code(), Code::kRefused) << "mapped";
  EXPECT_EQ(device_->release(kTestBase).code(), Code::kRefused) << "something is mapped in it";
  ASSERT_TRUE(device_->unmap(chunk).ok());
  ASSERT_TRUE(device_->destroy(chunk).ok());
  EXPECT_EQ(device_->destroy(chunk).code(), Code::kNotFound);
  EXPECT_EQ(device_->map(chunk, kTestBase).code(), Code::kNotFound);
  EXPECT_EQ(device_->unmap(ChunkId{99}).code(), Code::kNotFound);
}

TEST_P(Conformance, TheCapacityIsALimit) {
  EXPECT_EQ(device_->create(kCapacity + piece_).status().code(), Code::kExhausted);
  EXPECT_EQ(device_->create(0).status().code(), Code::kInvalid);
  EXPECT_EQ(device_->create(piece_ + 1).status().code(), Code::kInvalid);
  const ChunkId all = create(kCapacity);
  EXPECT_EQ(device_->create(piece_).status().code(), Code::kExhausted);
  ASSERT_TRUE(device_->destroy(all).ok());
  EXPECT_EQ(device_->usage().free, kCapacity);
}

TEST_P(Conformance, PinnedMemoryIsThere) {
  auto pinned = device_->pin(3 * kMiB + 5);
  ASSERT_TRUE(pinned.ok());
  EXPECT_GE(pinned.value()->bytes(), 3 * kMiB + 5);
  std::memset(pinned.value()->data(), 7, 3 * kMiB + 5);
  EXPECT_EQ(device_->pin(0).status().code(), Code::kInvalid);

  std::vector<char> mine(8 * kMiB, 3);
  auto existing = device_->pin_existing(mine.data(), mine.size());
  ASSERT_TRUE(existing.ok());
  EXPECT_EQ(existing.value()->data(), mine.data());
  EXPECT_EQ(device_->usage().free, kCapacity) << "host memory is not the device's";
}

TEST_P(Conformance, DevicesCopyFromEachOther) {
  auto made = GetParam().make(kCapacity);
  ASSERT_TRUE(made.ok());
  Device& peer = *made.value();
  const uint64_t there = kTestBase + 64 * piece_;
  auto stream = device_->make_stream(), peers = peer.make_stream();
  ASSERT_TRUE(stream.ok() && peers.ok());
  ASSERT_TRUE(device_->reserve(kTestBase, 2 * piece_).ok() && peer.reserve(there, 2 * piece_).ok());
  auto remote = peer.create(2 * piece_);
  ASSERT_TRUE(remote.ok() && peer.map(remote.value(), there).ok());
  ASSERT_TRUE(device_->map(create(2 * piece_), kTestBase).ok());
  const std::vector<char> data(2 * piece_, 9);
  ASSERT_TRUE(peers.value()->copy_in(there, data.data(), data.size()).ok());
  wait(*peers.value());
  ASSERT_TRUE(stream.value()->copy_peer(kTestBase, peer, there, data.size()).ok());
  EXPECT_EQ(read(*stream.value(), kTestBase, data.size()), data);
  EXPECT_EQ(stream.value()->copy_peer(kTestBase, peer, there + 1, data.size()).code(), Code::kInvalid);
  EXPECT_EQ(stream.value()->copy_peer(kTestBase + 1, peer, there, data.size()).code(), Code::kInvalid);
}

// Any sequence of calls leaves the accounts in order, and every mapped chunk keeps what was written to it.
TEST_P(Conformance, AccountsAddUpAfterEveryStepOfARandomRun) {
  struct Held {
    ChunkId id;
    uint64_t bytes, address = 0;
    char mark = 0;
  };
  auto stream = device_->make_stream();
  ASSERT_TRUE(stream.ok());
  const uint64_t slots = kCapacity / piece_ + 4;
  ASSERT_TRUE(device_->reserve(kTestBase, slots * piece_).ok());
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::vector<Held> held;
    for (int step = 0; step < 120; ++step) {
      const uint64_t what = random() % 4;
      const size_t which = held.empty() ? 0 : random() % held.size();
      if (what == 0 || held.empty()) {
        const uint64_t bytes = (1 + random() % 8) * piece_;
        auto chunk = device_->create(bytes);
        ASSERT_EQ(
            chunk.ok(), bytes <= kCapacity - [&] {
              uint64_t sum = 0;
              for (const Held& one : held) sum += one.bytes;
              return sum;
            }());
        if (chunk.ok()) held.push_back({chunk.value(), bytes});
      } else if (what == 1 && !held[which].address) {
        Held& one = held[which];
        const uint64_t address = kTestBase + random() % slots * piece_;
        if (device_->map(one.id, address).ok()) {
          one.address = address;
          one.mark = static_cast<char>(random());
          ASSERT_TRUE(stream.value()->copy_in(address, &one.mark, 1).ok());
          ASSERT_TRUE(stream.value()->copy_in(address + one.bytes - 1, &one.mark, 1).ok());
          wait(*stream.value());
        }
      } else if (what == 2 && held[which].address) {
        ASSERT_EQ(read(*stream.value(), held[which].address + held[which].bytes - 1, 1)[0], held[which].mark);
        ASSERT_TRUE(device_->unmap(held[which].id).ok());
        held[which].address = 0;
      } else if (what == 3) {
        ASSERT_EQ(device_->destroy(held[which].id).ok(), held[which].address == 0);
        if (!held[which].address) held.erase(held.begin() + static_cast<long>(which));
      }
      Usage expected{kCapacity, kCapacity, 0, 0};
      for (const Held& one : held) {
        expected.free -= one.bytes;
        (one.address ? expected.mapped : expected.reserved) += one.bytes;
      }
      const Usage usage = device_->usage();
      ASSERT_TRUE(usage.adds_up());
      ASSERT_EQ(usage.free, expected.free);
      ASSERT_EQ(usage.mapped, expected.mapped);
      ASSERT_EQ(usage.reserved, expected.reserved);
    }
    for (const Held& one : held) {
      if (one.address) {
        ASSERT_EQ(read(*stream.value(), one.address, 1)[0], one.mark);
        ASSERT_TRUE(device_->unmap(one.id).ok());
      }
      ASSERT_TRUE(device_->destroy(one.id).ok());
    }
  }
  EXPECT_EQ(device_->usage().free, kCapacity);
}

Result<std::unique_ptr<Device>> host(uint64_t capacity) { return make_host_device({.capacity = capacity}); }
Result<std::unique_ptr<Device>> host_prefaulted(uint64_t capacity) {
  return make_host_device({.capacity = capacity, .prefault = true});
}
Result<std::unique_ptr<Device>> cuda(uint64_t capacity) { return make_cuda_device({.capacity = capacity}); }
Result<std::unique_ptr<Device>> cuda_stand_in(uint64_t capacity) {
  return make_cuda_device({.capacity = capacity, .driver = ROUSE_FAKE_DRIVER});
}

INSTANTIATE_TEST_SUITE_P(Kinds, Conformance,
                         testing::Values(Kind{"host", host}, Kind{"host_prefaulted", host_prefaulted},
                                         Kind{"cuda_stand_in", cuda_stand_in}, Kind{"cuda", cuda},
                                         Kind{"accelerator_stand_in", accelerator::make_device}),
                         [](const auto& info) { return info.param.name; });

TEST(HostDevice, ACapacityThatIsNoMultipleOfAPieceIsRefused) {
  EXPECT_EQ(make_host_device({.capacity = 0}).status().code(), Code::kInvalid);
  EXPECT_EQ(make_host_device({.capacity = kMiB}).status().code(), Code::kInvalid);
}

TEST(CudaDevice, WhatIsNotThereIsSaid) {
  EXPECT_EQ(make_cuda_device({.driver = "libno-such-driver.so"}).status().code(), Code::kUnsupported);
  EXPECT_EQ(make_cuda_device({.driver = "libc.so.6"}).status().code(), Code::kUnsupported);
  EXPECT_EQ(make_cuda_device({.ordinal = 9, .driver = ROUSE_FAKE_DRIVER}).status().code(), Code::kNotFound);
  EXPECT_EQ(make_cuda_device({.capacity = kMiB, .driver = ROUSE_FAKE_DRIVER}).status().code(), Code::kInvalid);
  EXPECT_EQ(make_cuda_device({.capacity = uint64_t{1} << 40, .driver = ROUSE_FAKE_DRIVER}).status().code(),
            Code::kInvalid);
  auto whole = make_cuda_device({.driver = ROUSE_FAKE_DRIVER});
  ASSERT_TRUE(whole.ok());
  EXPECT_GT(whole.value()->usage().capacity, 900 * kMiB) << "what is free, but for a little";
}

using HostDeathTest = testing::Test;
TEST(HostDeathTest, TouchingWhatIsNotMappedIsASignal) {
#if !defined(__SANITIZE_THREAD__)
  auto device = make_host_device({.capacity = kCapacity});
  ASSERT_TRUE(device.ok() && device.value()->reserve(kTestBase, 2 * kMiB).ok());
  auto chunk = device.value()->create(2 * kMiB);
  ASSERT_TRUE(chunk.ok() && device.value()->map(chunk.value(), kTestBase).ok());
  ASSERT_TRUE(device.value()->unmap(chunk.value()).ok());
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(kTestBase) = 1, "");
#endif
}

}  // namespace
}  // namespace rouse::device
