#include "rouse/tape/candidates.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "rouse/base/file.h"
#include "rouse/base/text.h"

namespace rouse::tape {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = ".candidate";
// Whatever lies in the folder, no more of it is looked at.
constexpr std::size_t kMostEntries = 4 * kMaxKeptFiles;

struct Entry {
  fs::path path;
  fs::file_time_type written;
  std::uint64_t bytes = 0;
};

// The oldest first; what goes meanwhile is left out.
std::vector<Entry> entries(const std::string& folder) {
  std::vector<Entry> found;
  std::error_code failed;
  fs::directory_iterator at(folder, failed);
  for (; !failed && at != fs::directory_iterator() && found.size() < kMostEntries; at.increment(failed)) {
    std::error_code gone;
    const auto written = at->last_write_time(gone);
    if (gone) continue;
    const auto bytes = at->file_size(gone);
    if (!gone) found.push_back({at->path(), written, bytes});
  }
  std::sort(found.begin(), found.end(), [](const Entry& a, const Entry& b) {
    return a.written != b.written ? a.written < b.written : a.path < b.path;
  });
  return found;
}

std::string prefix(const Signature& signature) { return hex(signature) + "-"; }

}  // namespace

std::vector<Kept> Candidates::of(const Signature& signature, const Origin& here, std::size_t most) const {
  std::vector<Kept> kept;
  if (folder_.empty()) return kept;
  const std::string mine = prefix(signature);
  std::vector<Entry> found = entries(folder_);
  std::erase_if(found, [&](const Entry& entry) {
    const std::string name = entry.path.filename().string();
    return !name.starts_with(mine) || !name.ends_with(kSuffix);
  });
  for (std::size_t i = found.size() > most ? found.size() - most : 0; i < found.size(); ++i) {
    const std::string path = found[i].path.string();
    auto bytes = read_file(path, kMaxKeptBytes);
    auto tape = bytes.ok() ? load(bytes.value(), File::kCandidate) : Result<Tape>(bytes.status());
    if (tape.ok() && tape.value().origin.signature == signature && fits(tape.value().origin, here).ok())
      kept.push_back({std::move(tape).value(), path});
    else
      remove(path);
  }
  return kept;
}

std::string Candidates::add(const Tape& tape) const {
  if (folder_.empty()) return {};
  auto file = save(tape, File::kCandidate);
  if (!file.ok() || file.value().size() > kMaxKeptBytes) return {};
  std::vector<Entry> found = entries(folder_);
  std::uint64_t bytes = file.value().size();
  for (const Entry& entry : found) bytes += entry.bytes;
  for (std::size_t i = 0; i < found.size() && (found.size() - i >= kMaxKeptFiles || bytes > kMaxKeptBytes); ++i) {
    remove(found[i].path.string());
    bytes -= found[i].bytes;
  }
  const std::string path = text(folder_, "/", prefix(tape.origin.signature), checksum_of(file.value()), kSuffix);
  // Without it, it takes another request until there is a tape.
  return write_whole(path, file.value()).ok() ? path : std::string();
}

void Candidates::remove(const std::string& path) const {
  std::error_code failed;
  if (!path.empty()) fs::remove(path, failed);
}

}  // namespace rouse::tape
