#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "rouse/tape/tape.h"

namespace rouse::tape {
namespace {

std::vector<std::byte> blob(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

// y = call0(x, weight, constant); guard on y; z = create; write z.
Tape example() {
  Tape tape;
  tape.origin = {"2.13.0", "cpu", "abc", {1, 2}, 0x500000000000, 4096, 6};
  tape.templates = {blob({1, 2, 3})};
  tape.blobs = {blob({1, 2, 3, 4, 5, 6, 7, 8}), blob({9}), blob({4, 4})};
  tape.places = {{Class::kInput, false, 0, 64},
                 {Class::kWeight, false, 128, 256},
                 {Class::kConstant, false, 0, 8},
                 {Class::kScratch, false, 0, 16},
                 {Class::kScratch, true, 0, 8}};
  tape.operands = {0, 1, 2, 3, 3, 4, 4};
  tape.instructions = {{Op::kCall, 3, 1, 0, 0, 0, 0},
                       {Op::kGuard, 0, 0, 1, 4, 15, 0},
                       {Op::kCreate, 0, 0, 0, 5, 0, 8},
                       {Op::kWrite, 0, 0, 2, 6, 6, 0}};
  tape.outputs = {{3, 6, 0, 0, {2, 2}, {2, 1}}};
  tape.inputs = 1;
  tape.lifetimes = {{16, 0, 3}, {8, 1, 2}};
  tape.plan = {{kUnplanned, 0}, 128};
  return tape;
}

TEST(Tape, ComesBackFromItsFile) {
  const Tape tape = example();
  auto file = save(tape);
  ASSERT_TRUE(file.ok()) << file.status().describe();
  auto back = load(file.value());
  ASSERT_TRUE(back.ok()) << back.status().describe();
  EXPECT_EQ(back.value(), tape);
}

// ROUSE_CORPUS=FOLDER writes this tape there, for fuzz/corpus/tape.
TEST(Tape, IsAnExampleForFuzzing) {
  const char* folder = std::getenv("ROUSE_CORPUS");
  if (folder == nullptr) GTEST_SKIP() << "ROUSE_CORPUS is not set";
  Tape planned = example();
  planned.plan = {{0, 128}, 256};
  int number = 0;
  for (const Tape& tape : {example(), planned, Tape{}}) {
    const auto file = save(tape).value();
    std::ofstream out(std::string(folder) + "/example-" + std::to_string(number++), std::ios::binary);
    out.write(reinterpret_cast<const char*>(file.data()), static_cast<std::streamsize>(file.size()));
    EXPECT_TRUE(out.good());
  }
}

TEST(Tape, KnowsTheLastUseOfEachPlace) {
  EXPECT_EQ(last_uses(example()), (std::vector<std::uint32_t>{0, kOutlives, kOutlives, kOutlives, 3}));
}

TEST(Tape, EveryNumberIsChecked) {
  EXPECT_TRUE(check(example()).ok());
  auto refused = [](auto change) {
    Tape tape = example();
    change(tape);
    return check(tape).code() == Code::kInvalid;
  };
  EXPECT_TRUE(refused([](Tape& t) { t.operands[0] = 99; })) << "a place that is not there";
  EXPECT_TRUE(refused([](Tape& t) { t.operands[0] = 4; })) << "a place before it is made";
  EXPECT_TRUE(refused([](Tape& t) { t.operands[5] = 3; })) << "a place made twice";
  EXPECT_TRUE(refused([](Tape& t) { t.operands[3] = 1; })) << "a weight as a result";
  EXPECT_TRUE(refused([](Tape& t) { t.instructions[0].first = 5; })) << "operands past the end";
  EXPECT_TRUE(refused([](Tape& t) { t.instructions[0].number = 1; })) << "no such template";
  EXPECT_TRUE(refused([](Tape& t) { t.instructions[1].offset = 16; })) << "a guard outside";
  EXPECT_TRUE(refused([](Tape& t) { t.instructions[3].offset = 7; })) << "a write outside";
  EXPECT_TRUE(refused([](Tape& t) { t.instructions[3].offset = ~std::uint64_t{0}; })) << "a write far outside";
  EXPECT_TRUE(refused([](Tape& t) { t.instructions[2].count = ~std::uint64_t{0}; })) << "too large";
  EXPECT_TRUE(refused([](Tape& t) { t.instructions[1].op = static_cast<Op>(77); })) << "no such instruction";
  EXPECT_TRUE(refused([](Tape& t) { t.instructions[2].op = Op::kValue; })) << "no call before";
  EXPECT_TRUE(refused([](Tape& t) { t.places[1].value = 4000; })) << "a weight outside of the model";
  EXPECT_TRUE(refused([](Tape& t) { t.places[0].value = 1; })) << "an input that there is not";
  EXPECT_TRUE(refused([](Tape& t) { t.places[2].value = 1; })) << "a constant of another size";
  EXPECT_TRUE(refused([](Tape& t) { t.places[4].written = false; })) << "a write to what is unchanged";
  EXPECT_TRUE(refused([](Tape& t) { t.outputs[0].place = 9; })) << "an output that is not there";
  EXPECT_TRUE(refused([](Tape& t) { t.inputs = kMaxInputs + 1; })) << "too many inputs";
}

TEST(Tape, StoragesOfASessionAreNotSaved) {
  Tape tape = example();
  tape.places[0] = {Class::kHeld, false, 17, 64};
  const auto file = save(tape);
  EXPECT_EQ(file.status().code(), Code::kInvalid);
  EXPECT_NE(file.status().text().find("storage 17"), std::string::npos);
}

TEST(Tape, DamagedFilesAreRefused) {
  const auto file = save(example()).value();
  for (std::size_t cut = 0; cut < file.size(); ++cut)
    EXPECT_FALSE(load(std::span(file).first(cut)).ok()) << "cut off at " << cut;
  for (std::size_t at = 0; at < file.size(); ++at) {
    auto damaged = file;
    damaged[at] ^= std::byte{0x10};
    EXPECT_FALSE(load(damaged).ok()) << "damaged at " << at;
  }
  auto newer = file;
  newer[8] = std::byte{2};
  EXPECT_NE(load(newer).status().text().find("version 2"), std::string::npos);
}

}  // namespace
}  // namespace rouse::tape
