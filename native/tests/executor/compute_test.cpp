// What every device gives an executor, on the CPU and on a device whose memory this process may not touch.
#include "rouse/executor/compute.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "rouse/executor/generators.h"
#include "places.h"

namespace rouse::executor {
namespace {

class ComputeTest : public testing::TestWithParam<std::string> {
 protected:
  const Compute compute = accelerator::compute_at(GetParam());
};

std::vector<std::byte> numbers(std::size_t count) {
  std::vector<std::byte> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = static_cast<std::byte>(i * 7 + 1);
  return made;
}

TEST_P(ComputeTest, BytesComeBackAsTheyWent) {
  const auto data = numbers(1000);
  const c10::Storage storage = compute.make_storage(1100);
  EXPECT_EQ(storage.device(), compute.device());
  ASSERT_TRUE(compute.zero(storage).ok());
  ASSERT_TRUE(compute.write(storage, 50, data).ok());
  std::vector<std::byte> read(1100), room;
  ASSERT_TRUE(compute.read(storage, 0, read).ok());
  EXPECT_EQ(std::memcmp(read.data() + 50, data.data(), data.size()), 0);
  EXPECT_EQ(read[49], std::byte{0});
  EXPECT_EQ(read[1050], std::byte{0});
  const auto looked = compute.look(storage, 60, 3, room);
  ASSERT_TRUE(looked.ok());
  EXPECT_EQ(looked.value()[0], data[10]);
  const c10::Storage other = compute.make_storage(1100);
  ASSERT_TRUE(compute.copy(other, storage, 55).ok());
  ASSERT_TRUE(compute.read(other, 0, std::span(read).first(55)).ok());
  EXPECT_EQ(std::memcmp(read.data() + 50, data.data(), 5), 0);
  ASSERT_TRUE(compute.write(compute.make_storage(0), 0, {}).ok());
  ASSERT_TRUE(compute.zero(compute.make_storage(0)).ok());
}

TEST_P(ComputeTest, MemoryAtAnAddressIsItsOwners) {
  const accelerator::Bytes weights(GetParam(), 256);
  weights.put(std::vector<std::byte>(256, std::byte{7}));
  {
    const c10::Storage storage = compute.at(weights.address() + 64, 128);
    EXPECT_FALSE(storage.resizable());
    std::byte read;
    ASSERT_TRUE(compute.read(storage, 127, {&read, 1}).ok());
    EXPECT_EQ(read, std::byte{7});
    ASSERT_TRUE(compute.write(storage, 0, numbers(1)).ok());
  }
  EXPECT_EQ(weights.get()[64], std::byte{1}) << "still there, and changed there";
}

TEST_P(ComputeTest, GeneratorsGiveTheSameNumbersAgain) {
  Generators generators(compute.device());
  const auto fresh = generators.state(3);
  ASSERT_TRUE(generators.seed(3, 99).ok());
  EXPECT_NE(generators.state(3), fresh);
  const auto seeded = generators.state(3);
  ASSERT_TRUE(generators.set_state(3, fresh).ok());
  EXPECT_EQ(generators.state(3), fresh);
  generators.drop(3);
  EXPECT_EQ(generators.state(3), fresh) << "a new one of the same number";
  ASSERT_TRUE(generators.seed(0, 99).ok());
  EXPECT_EQ(generators.state(0), seeded);
  EXPECT_EQ(generators.at(0).device(), compute.device());
  EXPECT_EQ(generators.set_state(0, std::vector<std::byte>(3)).code(), Code::kInvalid);
}

INSTANTIATE_TEST_SUITE_P(Everywhere, ComputeTest, testing::ValuesIn(accelerator::places()),
                         accelerator::name_of_place);

TEST(StandIn, NobodyTouchesItsMemory) {
  const Compute compute = accelerator::compute_at("stand_in");
  const c10::Storage storage = compute.make_storage(64);
  EXPECT_DEATH(static_cast<volatile char*>(storage.mutable_data())[0] = 1, "");
}

TEST(StandIn, ReadingWaitsForItAndWhatFailedIsHeardThen) {
  const Compute compute = accelerator::compute_at("stand_in");
  const c10::Storage storage = compute.make_storage(64);
  const auto before = accelerator::synchronisations();
  ASSERT_TRUE(compute.zero(storage).ok());
  ASSERT_TRUE(compute.copy(storage, compute.make_storage(64), 64).ok());
  EXPECT_EQ(accelerator::synchronisations(), before);
  accelerator::fail_next("an illegal address");
  ASSERT_TRUE(compute.zero(storage).ok()) << "nobody knows yet";
  const Status failed = compute.synchronize();
  EXPECT_EQ(failed.code(), Code::kFailed);
  EXPECT_NE(failed.text().find("an illegal address"), std::string::npos);
  EXPECT_EQ(accelerator::synchronisations(), before + 1);
  EXPECT_TRUE(compute.synchronize().ok());
}

TEST(StandIn, ADeviceThatIsNotThereIsRefusedWithWhatToDo) {
  accelerator::stand_in();
  const auto refused = [](c10::Device device) {
    const auto made = Compute::make(device);
    EXPECT_FALSE(made.ok());
    return made.status();
  };
  Status status = refused(c10::Device(c10::DeviceType::PrivateUse1, 5));
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.text().find("only 1 of its kind"), std::string::npos) << status.text();
  status = refused(c10::Device(c10::DeviceType::XPU, 0));
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.text().find("install a PyTorch that is built for it"), std::string::npos) << status.text();
  EXPECT_EQ(refused(c10::Device(c10::DeviceType::PrivateUse1)).code(), Code::kInvalid);
}

TEST(StandIn, MemoryThatRunsOutIsAnErrorOfItsOwn) {
  const Compute compute = accelerator::compute_at("stand_in");
  EXPECT_THROW(compute.make_storage(std::uint64_t{1} << 40), c10::OutOfMemoryError);
}

}  // namespace
}  // namespace rouse::executor
