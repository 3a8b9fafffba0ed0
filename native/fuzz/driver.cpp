// Runs a fuzz target without libFuzzer: every file of a corpus, then random changes of them for a bounded time. The
// seed is printed first; with the same seed and corpus it does the same. Meant for builds with sanitizers.
//
//   TARGET CORPUS [SECONDS [SEED]]
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kLongest = 1 << 16;

std::vector<Bytes> read_corpus(const char* folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

// Numbers at which lengths and ids go wrong.
std::uint64_t interesting(std::mt19937_64& random) {
  constexpr std::uint64_t kNumbers[] = {0, 1, 7, 8, 0x7f, 0xff, 0xffff, 0x7fffffff, 0xffffffff, 1ull << 40, ~0ull};
  return kNumbers[random() % std::size(kNumbers)];
}

void change(Bytes& bytes, const std::vector<Bytes>& corpus, std::mt19937_64& random) {
  const std::size_t at = bytes.empty() ? 0 : random() % bytes.size();
  const std::size_t count = std::min<std::size_t>(bytes.size() - at, 1 + random() % 16);
  switch (random() % 6) {
    case 0:
      if (!bytes.empty()) bytes[at] ^= static_cast<std::uint8_t>(1u << random() % 8);
      break;
    case 1:
      if (!bytes.empty()) bytes[at] = static_cast<std::uint8_t>(random());
      break;
    case 2: {
      const std::uint64_t number = interesting(random);
      const std::size_t width = std::min<std::size_t>(std::size_t{1} << random() % 4, bytes.size() - at);
      for (std::size_t i = 0; i < width; ++i) bytes[at + i] = static_cast<std::uint8_t>(number >> 8 * i);
      break;
    }
    case 3:
      bytes.erase(bytes.begin() + static_cast<long>(at), bytes.begin() + static_cast<long>(at + count));
      break;
    case 4: {
      const Bytes piece(bytes.begin() + static_cast<long>(at), bytes.begin() + static_cast<long>(at + count));
      bytes.insert(bytes.begin() + static_cast<long>(at), piece.begin(), piece.end());
      break;
    }
    default: {
      const Bytes& other = corpus[random() % corpus.size()];
      if (other.empty() || bytes.empty()) break;
      const std::size_t from = random() % other.size();
      const std::size_t length = std::min({other.size() - from, bytes.size() - at, std::size_t{32}});
      std::copy_n(other.begin() + static_cast<long>(from), length, bytes.begin() + static_cast<long>(at));
    }
  }
  if (bytes.size() > kLongest) bytes.resize(kLongest);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: %s CORPUS [SECONDS [SEED]]\n", arguments[0]);
    return 2;
  }
  const double seconds = count > 2 ? std::atof(arguments[2]) : 10;
  const std::uint64_t seed = count > 3 ? std::strtoull(arguments[3], nullptr, 10) : 1;
  const auto corpus = read_corpus(arguments[1]);
  if (corpus.empty()) {
    std::fprintf(stderr, "%s: the corpus in %s is empty\n", arguments[0], arguments[1]);
    return 2;
  }
  std::printf("%zu files, %.0f s, seed %llu\n", corpus.size(), seconds, static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  for (const Bytes& bytes : corpus) LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  std::mt19937_64 random(seed);
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::uint64_t runs = 0;
  while (std::chrono::steady_clock::now() < until) {
    Bytes bytes = corpus[random() % corpus.size()];
    for (std::uint64_t changes = 1 + random() % 4; changes > 0; --changes) change(bytes, corpus, random);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    ++runs;
  }
  std::printf("%llu inputs, nothing found\n", static_cast<unsigned long long>(runs));
  return 0;
}
