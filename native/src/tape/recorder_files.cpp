// What a recorder says of its tapes, and their files.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "entry.h"

namespace rouse::tape {
namespace {

constexpr const char* kSuffix = ".tape";
constexpr std::streamoff kMaxDescription = 512 << 10;

// As a JSON string holds it; reasons are text of ours, and names of operators.
std::string quoted(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

}  // namespace

std::vector<SignatureInfo> Recorder::info() const {
  std::vector<SignatureInfo> found;
  for (const auto& [signature, entry] : entries_) {
    SignatureInfo info;
    info.signature = signature;
    info.recorded = entry->recorded;
    info.tapes = static_cast<std::uint32_t>(entry->players.size());
    info.refused = entry->refused;
    for (const auto& player : entry->players) {
      info.replays += player->stats().replays;
      info.guards_missed += player->stats().guards_missed;
    }
    if (!entry->players.empty()) info.stats = entry->players.front()->stats();
    found.push_back(std::move(info));
  }
  return found;
}

std::string Recorder::describe() const {
  std::ostringstream text;
  text << "[";
  const char* separator = "";
  for (const SignatureInfo& info : info()) {
    text << separator << "{\"signature\":\"" << hex(info.signature) << "\",\"recorded\":" << info.recorded
         << ",\"tapes\":" << info.tapes << ",\"replays\":" << info.replays
         << ",\"guards_missed\":" << info.guards_missed << ",\"planned_blocks\":" << info.stats.planned_blocks
         << ",\"unplanned_blocks\":" << info.stats.unplanned_blocks << ",\"arena_bytes\":" << info.stats.arena_bytes
         << ",\"least_bytes\":" << info.stats.least_bytes << ",\"all_bytes\":" << info.stats.all_bytes
         << ",\"graph_replays\":" << info.stats.graph_replays << ",\"no_graph\":\"" << quoted(info.stats.no_graph)
         << "\",\"refused\":\"" << quoted(info.refused) << "\"}";
    separator = ",";
    // One message holds it; the rest is counted in the number of signatures only.
    if (text.tellp() > kMaxDescription) break;
  }
  text << "]";
  return text.str();
}

Result<std::vector<std::vector<std::byte>>> Recorder::save(const Signature& signature) const {
  const auto found = entries_.find(signature);
  if (found == entries_.end() || found->second->players.empty())
    return Status(Code::kNotFound, "there is no tape of this signature");
  std::vector<std::vector<std::byte>> files;
  for (const auto& player : found->second->players) {
    Tape tape = player->tape();
    for (Place& place : tape.places) {
      if (place.kind != Class::kHeld || place.written || changed_.contains(place.value)) continue;
      const auto captured = found->second->captured.find(place.value);
      if (captured == found->second->captured.end()) continue;
      place = {Class::kConstant, false, tape.blobs.size(), captured->second.size()};
      tape.blobs.push_back(captured->second);
    }
    auto file = tape::save(tape);
    if (!file.ok()) return file.status();
    files.push_back(std::move(file).value());
  }
  return files;
}

void Recorder::write_files(const Entry& entry) {
  auto files = save(entry.signature);
  for (std::size_t i = 0; files.ok() && i < files.value().size(); ++i) {
    const auto& bytes = files.value()[i];
    const std::filesystem::path path =
        std::filesystem::path(options_.folder) / (hex(entry.signature) + "-" + std::to_string(i) + kSuffix);
    const std::filesystem::path part = path.string() + ".part";
    std::ofstream out(part, std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    out.close();
    std::error_code failed;
    if (out) std::filesystem::rename(part, path, failed);
    if (!out || failed) files = Status(Code::kFailed, "its tape could not be written to " + path.string());
  }
  // It is replayed here all the same.
  if (!files.ok()) entries_.at(entry.signature)->refused = "not saved: " + files.status().text();
}

Status Recorder::load_folder(std::size_t& left_out) {
  left_out = 0;
  std::error_code failed;
  for (const auto& file : std::filesystem::directory_iterator(options_.folder, failed)) {
    if (file.path().extension() != kSuffix) continue;
    std::ifstream in(file.path(), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    if (!in.good() || !load(std::as_bytes(std::span(bytes))).ok()) ++left_out;
  }
  if (failed) return Status(Code::kNotFound, "tapes in " + options_.folder + " cannot be read: " + failed.message());
  return {};
}

Status Recorder::load(std::span<const std::byte> file) {
  auto tape = tape::load(file);
  if (!tape.ok()) return tape.status();
  ROUSE_RETURN_IF_ERROR(fits(tape.value().origin, options_.origin));
  Entry* entry = this->entry(tape.value().origin.signature);
  if (entry == nullptr || entry->players.size() >= kMaxVariants)
    return Status(Code::kExhausted, "this session has as many tapes as it may have");
  auto player = Player::prepare(
      std::move(tape).value(), [this](const Place& place) { return find(place); }, engine_->compute());
  if (!player.ok()) return player.status();
  entry->players.push_back(std::move(player).value());
  return {};
}

}  // namespace rouse::tape
