// Who is let in where freed memory is not cleared.
#include "tenant.h"

#include <gtest/gtest.h>

namespace rouse::serve {
namespace {

TEST(Tenant, WhereMemoryIsNotClearedTheFirstVersionIsTheOnlyOne) {
  Tenant tenant(Tenant::kOne);
  EXPECT_TRUE(tenant.admit("a").ok());
  EXPECT_TRUE(tenant.admit("a").ok());
  const Status refused = tenant.admit("b");
  EXPECT_EQ(refused.code(), Code::kRefused);
  EXPECT_NE(refused.text().find("isolation = \"isolated\""), std::string::npos) << refused.text();
  EXPECT_FALSE(tenant.admit("").ok()) << "a session without a version is a function of its own";
}

TEST(Tenant, WhereItIsClearedAllAreLetIn) {
  Tenant tenant(Tenant::kMany);
  EXPECT_TRUE(tenant.admit("a").ok());
  EXPECT_TRUE(tenant.admit("b").ok());
}

}  // namespace
}  // namespace rouse::serve
