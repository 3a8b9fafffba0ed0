// The tapes of one session: recorded from what its engine shows, verified against a second request, replayed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "rouse/executor/engine.h"
#include "rouse/tape/candidates.h"
#include "rouse/tape/player.h"
#include "rouse/tape/recording.h"
#include "rouse/tape/shelf.h"
#include "rouse/tape/tape.h"

namespace rouse::tape {

// Bounds of one session.
// Streams of one signature that wait for a second like them.
inline constexpr std::size_t kMaxCandidates = 4;
// Requests of one signature that are recorded without any tape coming of it; then it is given up.
inline constexpr std::uint32_t kMaxAttempts = 16;
// What a session holds and never changes goes into the file of a tape up to this many bytes together.
inline constexpr std::uint64_t kMaxHeldBytes = 16u << 20;

struct RecorderOptions {
  // What tapes say of their origin; the signature is each request's own.
  Origin origin;
  executor::Residency* residency = nullptr;
  // Whether a verified tape is replayed once beside the eager request and its outputs compared bit by bit.
  bool compare = true;
  // Where verified tapes are written, and read from at load_folder(); empty: nowhere.
  std::string folder;
  // Where streams wait for a second one over sessions; see Candidates.
  std::string candidates;
};

struct SignatureInfo {
  Signature signature{};
  std::uint32_t recorded = 0;  // requests
  std::uint32_t tapes = 0;
  std::uint64_t replays = 0, guards_missed = 0;
  PlayerStats stats;    // of the first tape
  std::string refused;  // why the last request gave no tape; empty: it did, or was the first
};

// REPLAY of this tape, without inputs, is answered by describe().
inline constexpr std::uint64_t kDescribeTapes = ~std::uint64_t{0};

class Recorder final : public executor::Observer {
 public:
  explicit Recorder(RecorderOptions options);
  ~Recorder();
  // The engine that shows what happens; after it was made, as it is made with this observer. It is outlived by nothing
  // here: detach() before it ends.
  void attach(executor::Engine& engine) { engine_ = &engine; }

  void on_begin(const wire::Begin& begin, std::span<const std::uint64_t> inputs) override;
  void on_create(std::uint64_t name, std::uint64_t bytes) override;
  void on_resize(std::uint64_t name, std::uint64_t bytes) override;
  void on_free(std::span<const std::uint64_t> names) override;
  void on_write(std::uint64_t name, std::uint64_t offset, std::span<const std::byte> data) override;
  void on_read(std::uint64_t name, std::uint64_t offset, std::span<const std::byte> data) override;
  void on_call(std::uint32_t number, const std::shared_ptr<executor::Operation>& operation,
               std::span<const std::uint64_t> slots, std::span<const std::uint64_t> results, bool learned) override;
  void on_value(const std::shared_ptr<executor::Operation>& operation, std::span<const std::byte> items) override;
  void on_seed(const wire::Seed& seed) override;
  void on_error(const Status& error) override;
  void on_end(std::uint64_t request, std::span<const std::uint64_t> names,
              std::span<const executor::TensorSpec> outputs) override;
  Status on_replay(executor::Engine& engine, std::uint64_t tape, std::span<const std::uint64_t> inputs,
                   std::span<const std::uint64_t> outputs, std::vector<std::byte>& answer) override;

  // Signatures with their tapes and why others have none.
  std::vector<SignatureInfo> info() const;
  // The same as JSON, for people and for clients.
  std::string describe() const;
  // The file of each tape of a signature. REFUSED where one uses what only this session has; NOT_FOUND: no tapes.
  Result<std::vector<std::vector<std::byte>>> save(const Signature& signature) const;
  // The files of a signature are where they last: what led to its tapes needs to be kept no longer.
  void saved(const Signature& signature);
  // Adds a tape out of a file. MISMATCH: of another PyTorch, device, or layout of the model.
  Status load(std::span<const std::byte> file);
  // Adds all tapes in the options' folder. Those that do not fit here are left out, and counted in `left_out`.
  Status load_folder(std::size_t& left_out);

 private:
  struct Entry;
  struct Candidate;

  Entry* entry(const Signature& signature);
  Entry* entry(std::uint64_t tape);
  void keep_inputs(std::span<const std::uint64_t> inputs);
  void verify(Entry& entry, Recorded recorded, std::span<const std::uint64_t> names,
              std::span<const executor::TensorSpec> outputs);
  void add_candidate(Entry& entry, Tape tape);
  bool same(const Candidate& candidate, const Tape& recorded) const;
  bool same_constant(const Candidate& candidate, const Place& kept, const Place& held) const;
  std::string compare(Player& player, std::span<const std::uint64_t> names,
                      std::span<const executor::TensorSpec> outputs);
  void capture(Entry& entry, const Player& player);
  void write_files(const Entry& entry);
  void touched(std::uint64_t name);
  void lost(std::uint64_t name);
  Result<c10::Storage> find(const Place& place) const;
  Surroundings surroundings();

  const RecorderOptions options_;
  const Candidates candidates_;
  executor::Engine* engine_ = nullptr;
  executor::Arena::Handle arena_;
  std::map<Signature, std::unique_ptr<Entry>> entries_;
  std::optional<Recording> recording_;
  Entry* recorded_entry_ = nullptr;
  std::uint64_t request_ = 0;
  // Inputs as they were when the request began, for the comparison.
  std::vector<c10::Storage> kept_inputs_;
  // Names that tapes hold, and those among them whose contents changed since.
  std::unordered_set<std::uint64_t> held_, changed_;
};

}  // namespace rouse::tape
