#include "rouse/serve/config.h"

#include <gtest/gtest.h>

#include <array>

namespace rouse::serve {
namespace {

Result<Config> read(std::vector<const char*> arguments, std::vector<const char*> environment = {}) {
  environment.push_back(nullptr);
  return read_config(arguments, environment.data());
}

TEST(Config, FlagsGoBeforeTheEnvironment) {
  Result<Config> config = read({"--listen", "/run/a", "--ring-kib=128"},
                               {"HOME=/root", "ROUSE_EXECUTOR_RING_KIB=256", "ROUSE_EXECUTOR_MAX_SESSIONS=3"});
  ASSERT_TRUE(config.ok()) << config.status().text();
  EXPECT_EQ(config.value().ring_kib, 128U);
  EXPECT_EQ(config.value().max_sessions, 3U);
}

TEST(Config, SaysWhatIsWrong) {
  EXPECT_EQ(read({}).status().text(), "--listen is ''; it must be an absolute path");
  EXPECT_EQ(read({"--listen", "/a", "--threads", "0"}).status().text(),
            "--threads is '0'; it must be a number from 1 to 1024");
  EXPECT_EQ(read({"--listen", "/a", "--threads", "two"}).status().text(),
            "--threads is 'two'; it must be a number from 1 to 1024");
  EXPECT_EQ(read({"--listen"}).status().text(), "--listen has no value");
  EXPECT_EQ(read({"--lisen", "/a"}).status().text(), "--lisen is not known; --help lists what is");
  EXPECT_EQ(read({"--listen", "/a"}, {"ROUSE_EXECUTOR_THREAD=1"}).status().text(),
            "ROUSE_EXECUTOR_THREAD is not known; --help lists what is");
  EXPECT_EQ(read({"--listen", "/a", "--ring-kib", "100"}).status().text(),
            "--ring-kib is 100; it must be a power of two");
  for (const char* const device : {"xpu:0", "host", "cuda:", "cuda:x", "cuda:100", ":0", ""}) {
    EXPECT_EQ(read({"--listen", "/a", "--device", device}).status().code(), Code::kUnsupported) << device;
  }
  for (const char* const device : {"host:7", "cuda:0"}) {
    EXPECT_TRUE(read({"--listen", "/a", "--device", device}).ok()) << device;
  }
}

TEST(Config, HelpListsEveryFlag) {
  const std::string text = usage();
  for (const char* const flag : {"--device", "--listen", "--quantum-us", "--confine", "ROUSE_EXECUTOR_DRAIN_S"}) {
    EXPECT_NE(text.find(flag), std::string::npos) << flag;
  }
}

}  // namespace
}  // namespace rouse::serve
