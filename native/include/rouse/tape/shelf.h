// The tapes of one function's version in one executor, by signature: replayed without any client.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rouse/executor/engine.h"
#include "rouse/tape/player.h"
#include "rouse/tape/signature.h"
#include "rouse/tape/tape.h"

namespace rouse::tape {

// Tapes of one signature: one for each way that its guards came out.
inline constexpr std::size_t kMaxVariants = 8;
// Signatures on one shelf.
inline constexpr std::size_t kMaxSignatures = 1024;

// Answers of REPLAY: one word, then the count of outputs, then a tensor item for each; kDescription: then a text.
enum class Outcome : std::uint64_t { kDone = 0, kGuardMissed = 1, kNoTape = 2, kDescription = 3 };

// What a replay on some tapes gave.
struct Played {
  Outcome outcome = Outcome::kNoTape;
  const Tape* tape = nullptr;         // kDone: the one that was replayed; until the shelf changes
  std::vector<c10::Storage> outputs;  // kDone: one an output of the tape
};

// Tries `players` in order until one meets all its guards, and moves that one to the front: requests of one kind come
// together. A tape whose guards miss has changed nothing that outlives it.
Result<Played> play(std::vector<std::unique_ptr<Player>>& players, std::span<const c10::Storage> inputs,
                    const Surroundings& with);

// Finds weights inside a model's range that is mapped at `base` of the device's memory. INVALID for what only a session
// holds.
Player::Find weights_at(std::uint64_t base, std::uint64_t bytes, const executor::Compute& compute = {});

// Not thread-safe: whoever has the device's turn uses it.
class Shelf {
 public:
  // `here`: what tapes have to fit (fits); its signature is not looked at.
  explicit Shelf(Origin here, executor::Residency* residency = nullptr, const executor::Compute& compute = {});

  // Adds a tape out of a file. MISMATCH: damaged, or of another PyTorch, device, or layout; INVALID: it does not hold,
  // or changes weights: what is replayed here leaves nothing behind, however it ends; EXHAUSTED: there are as many as
  // there may be.
  Result<Signature> load(std::span<const std::byte> file, const Player::Find& find);
  // Whether there is a tape for it.
  bool has(const Signature& signature) const { return players_.contains(signature); }
  // Replays one for these inputs. Allocates from the caller's UseHeap, if there is one.
  Result<Played> replay(const Signature& signature, std::span<const c10::Storage> inputs);

  struct Info {
    Signature signature{};
    std::size_t tapes = 0;
    std::uint64_t replays = 0, guards_missed = 0;
  };
  std::vector<Info> info() const;
  // Gives back the memory of planned replays, for a function that sleeps.
  void trim() { arena_->trim(); }

 private:
  const Origin here_;
  executor::Residency* residency_;
  const executor::Compute compute_;
  executor::Generators generators_;
  executor::Arena::Handle arena_;
  std::map<Signature, std::vector<std::unique_ptr<Player>>> players_;
};

}  // namespace rouse::tape
