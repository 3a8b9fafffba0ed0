#include "rouse/memory/host_image.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>

namespace rouse::memory {
namespace {

class HostImageTest : public testing::Test {
 protected:
  std::string path_ = testing::TempDir() + "rouse-image-" + std::to_string(getpid());
  void TearDown() override { std::remove(path_.c_str()); }
  void write(const std::string& what) { std::ofstream(path_, std::ios::binary) << what; }
};

TEST_F(HostImageTest, ItsBytesAreThoseOfTheFileEvenOnceItIsRemoved) {
  write("weights");
  auto image = HostImage::open(path_, 7);
  ASSERT_TRUE(image.ok()) << image.status().describe();
  std::remove(path_.c_str());
  EXPECT_EQ(image.value()->bytes(), 7u);
  EXPECT_EQ(std::memcmp(image.value()->data(), "weights", 7), 0);
}

TEST_F(HostImageTest, WhatIsNoImageIsRefused) {
  EXPECT_EQ(HostImage::open(path_).status().code(), Code::kNotFound);
  write("");
  EXPECT_EQ(HostImage::open(path_).status().code(), Code::kInvalid);
  write("weights");
  EXPECT_EQ(HostImage::open(path_, 8).status().code(), Code::kMismatch);
  EXPECT_EQ(HostImage::open("/").status().code(), Code::kInvalid);
}

}  // namespace
}  // namespace rouse::memory
