// Files of candidates: kept, found again by what they are of, bounded, and never taken for anything else.
#include "rouse/tape/candidates.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "rouse/base/file.h"

namespace rouse::tape {
namespace {

namespace fs = std::filesystem;

const Origin kHere{"2.13.0", "cpu", "layout", {1, 2}, 0x500000000000, 4096, 6};

// Tells one from another by its constant.
Tape stream(int number, std::size_t bytes = 8, Signature signature = {1, 2}) {
  Tape tape;
  tape.origin = kHere;
  tape.origin.signature = signature;
  tape.blobs = {std::vector<std::byte>(bytes, static_cast<std::byte>(number))};
  tape.places = {{Class::kConstant, false, 0, bytes}};
  tape.outputs = {{0, 6, 0, 0, {2}, {1}}};
  return tape;
}

class CandidatesTest : public ::testing::Test {
 protected:
  CandidatesTest() : folder(fs::temp_directory_path() / ("candidates-" + std::to_string(::getpid()))) {
    fs::create_directory(folder);
  }
  ~CandidatesTest() override { fs::remove_all(folder); }

  std::size_t files() const { return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), {})); }
  // As if it had been written so many seconds ago.
  static void age(const std::string& path, int seconds) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
  }
  static void overwrite(const std::string& path, const std::vector<std::byte>& bytes) {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }

  const fs::path folder;
  const Candidates kept{folder.string()};
};

TEST_F(CandidatesTest, AreFoundByTheirSignatureTheNewestLast) {
  for (int i = 0; i < 3; ++i) age(kept.add(stream(i)), 10 - i);
  ASSERT_FALSE(kept.add(stream(9, 8, {3, 4})).empty());
  const auto found = kept.of({1, 2}, kHere, 2);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].tape, stream(1));
  EXPECT_EQ(found[1].tape, stream(2));
  kept.remove(found[0].path);
  EXPECT_EQ(kept.of({1, 2}, kHere, 9).size(), 2u);
  EXPECT_TRUE(kept.of({5, 6}, kHere, 9).empty());
  // The same once more is one file.
  const std::size_t before = files();
  kept.add(stream(2));
  EXPECT_EQ(files(), before);
}

TEST_F(CandidatesTest, AreNoTapesAndTapesAreNone) {
  const std::string path = kept.add(stream(1));
  const auto bytes = read_file(path, kMaxKeptBytes);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(load(bytes.value()).status().code(), Code::kMismatch);
  const auto tape = save(stream(1));
  ASSERT_TRUE(tape.ok());
  overwrite(path, tape.value());
  EXPECT_TRUE(kept.of({1, 2}, kHere, 9).empty());
  EXPECT_EQ(files(), 0u) << "what cannot be used is removed";
}

TEST_F(CandidatesTest, OfAnotherOriginOrDamagedAreRemoved) {
  const auto gone = [&](auto change) {
    const std::string path = kept.add(stream(1));
    auto bytes = read_file(path, kMaxKeptBytes).value();
    Origin here = kHere;
    change(here, bytes);
    overwrite(path, bytes);
    const bool empty = kept.of({1, 2}, here, 9).empty();
    return empty && files() == 0;
  };
  EXPECT_FALSE(gone([](Origin&, auto&) {}));
  EXPECT_TRUE(gone([](Origin& here, auto&) { here.torch_version = "2.14.0"; }));
  EXPECT_TRUE(gone([](Origin& here, auto&) { here.device = "cuda:sm_90"; }));
  EXPECT_TRUE(gone([](Origin& here, auto&) { here.layout = "another"; }));
  EXPECT_TRUE(gone([](Origin& here, auto&) { here.model_base += 4096; }));
  EXPECT_TRUE(gone([](Origin&, auto& bytes) { bytes.back() ^= std::byte{1}; }));
  EXPECT_TRUE(gone([](Origin&, auto& bytes) { bytes.pop_back(); }));
  EXPECT_TRUE(gone([](Origin&, auto& bytes) { bytes.clear(); }));
  // Under another's name.
  const std::string path = kept.add(stream(1, 8, {3, 4}));
  fs::rename(path, folder / (hex({1, 2}) + "-1.candidate"));
  EXPECT_TRUE(kept.of({1, 2}, kHere, 9).empty());
  EXPECT_EQ(files(), 0u);
}

TEST_F(CandidatesTest, AreBoundedInNumberAndBytesAndTheOldestGo) {
  age(kept.add(stream(0)), 1000);
  for (std::size_t i = 1; i < kMaxKeptFiles + 3; ++i) age(kept.add(stream(1, 8, {1, i})), 900 - static_cast<int>(i));
  EXPECT_EQ(files(), kMaxKeptFiles);
  EXPECT_TRUE(kept.of({1, 2}, kHere, 9).empty());
  EXPECT_FALSE(kept.of({1, kMaxKeptFiles}, kHere, 9).empty());
  const std::string large = kept.add(stream(2, kMaxKeptBytes * 3 / 4, {7, 7}));
  ASSERT_FALSE(large.empty());
  age(large, 1);
  EXPECT_FALSE(kept.add(stream(2, kMaxKeptBytes / 2, {8, 8})).empty());
  EXPECT_EQ(files(), 1u);
  EXPECT_TRUE(kept.add(stream(2, kMaxKeptBytes, {9, 9})).empty()) << "larger than all may be";
  EXPECT_EQ(files(), 1u);
}

TEST_F(CandidatesTest, WhatNamesAStorageOfItsSessionOrHasNoFolderIsNotKept) {
  Tape tape = stream(1);
  tape.places.push_back({Class::kHeld, false, 1, 4});
  EXPECT_TRUE(kept.add(tape).empty());
  const Candidates nowhere{""};
  EXPECT_TRUE(nowhere.add(stream(1)).empty());
  EXPECT_TRUE(nowhere.of({1, 2}, kHere, 9).empty());
  EXPECT_EQ(files(), 0u);
  // A link leads elsewhere.
  const fs::path elsewhere = folder.string() + ".elsewhere";
  overwrite(elsewhere.string(), save(stream(1), File::kCandidate).value());
  fs::create_symlink(elsewhere, folder / (hex({1, 2}) + "-1.candidate"));
  EXPECT_TRUE(kept.of({1, 2}, kHere, 9).empty());
  EXPECT_TRUE(fs::remove(elsewhere));
}

}  // namespace
}  // namespace rouse::tape
