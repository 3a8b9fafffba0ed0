#include "rouse/base/status.h"

#include <gtest/gtest.h>

namespace rouse {
namespace {

TEST(Status, SaysCodeAndReason) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status(Code::kMismatch, "the range moved").describe(), "MISMATCH: the range moved");
}

TEST(Status, LeavesAFunctionEarly) {
  auto fails = []() -> Status {
    ROUSE_RETURN_IF_ERROR(Status(Code::kExhausted, "full"));
    return {};
  };
  EXPECT_EQ(fails().code(), Code::kExhausted);
}

TEST(Result, HoldsAValueOrAStatus) {
  Result<int> good(3), bad(Status(Code::kNotFound, "nothing"));
  EXPECT_EQ(good.value(), 3);
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace rouse
