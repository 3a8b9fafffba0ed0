#include "rouse/tape/order.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string_view>

#include "rouse/wire/format.h"

namespace rouse::tape {
namespace {

std::vector<std::byte> message(std::string_view name) {
  wire::Template head{};
  head.name_bytes = static_cast<std::uint16_t>(name.size());
  std::vector<std::byte> bytes(sizeof head + name.size());
  std::memcpy(bytes.data(), &head, sizeof head);
  std::memcpy(bytes.data() + sizeof head, name.data(), name.size());
  return bytes;
}

TEST(WeightOrder, IsOfFirstUsesAndTablesAreThoseThatAreOnlyReadByRows) {
  Tape tape;
  tape.templates = {message("aten::embedding"), message("aten::linear")};
  tape.places = {{Class::kInput, false, 0, 8},      {Class::kWeight, false, 512, 64},
                 {Class::kWeight, false, 0, 256},   {Class::kWeight, false, 1024, 128},
                 {Class::kWeight, false, 2048, 32}, {Class::kWeight, false, 4096, 0},
                 {Class::kScratch, false, 0, 8}};
  // embedding(table 2, input); embedding(table 3, input); linear(input, 1, 5); linear(input, 3, 1).
  tape.operands = {2, 0, 3, 0, 0, 1, 5, 0, 3, 1};
  tape.instructions = {{Op::kCall, 2, 0, 0, 0, 0, 0},
                       {Op::kCall, 2, 0, 0, 2, 0, 0},
                       {Op::kCall, 3, 0, 1, 4, 0, 0},
                       {Op::kCall, 3, 0, 1, 7, 0, 0}};
  tape.outputs = {{4, 6, 0, 0, {2}, {1}}};
  const WeightOrder order = weight_order(tape);
  EXPECT_EQ(order.first_uses, (std::vector<Part>{{0, 256}, {1024, 128}, {512, 64}, {2048, 32}}));
  EXPECT_EQ(order.tables, (std::vector<Part>{{0, 256}})) << "the other one is read whole later";
}

TEST(WeightOrder, ATemplateThatSaysMoreThanItHasIsNoGather) {
  Tape tape;
  tape.templates = {message("aten::embedding"), {}};
  tape.templates[0].resize(sizeof(wire::Template) + 3);
  tape.places = {{Class::kWeight, false, 0, 16}};
  tape.operands = {0, 0};
  tape.instructions = {{Op::kCall, 1, 0, 0, 0, 0, 0}, {Op::kCall, 1, 0, 1, 1, 0, 0}};
  EXPECT_TRUE(weight_order(tape).tables.empty());
}

}  // namespace
}  // namespace rouse::tape
