#include "rouse/tape/shelf.h"

#include <c10/core/Storage.h>

#include <algorithm>
#include <string>

namespace rouse::tape {

Result<Played> play(std::vector<std::unique_ptr<Player>>& players, std::span<const c10::Storage> inputs,
                    const Surroundings& with) {
  Played played;
  for (std::size_t i = 0; i < players.size(); ++i) {
    auto replayed = players[i]->run(inputs, with);
    if (!replayed.ok()) return replayed.status();
    if (replayed.value().missed) {
      played.outcome = Outcome::kGuardMissed;
      continue;
    }
    played.outcome = Outcome::kDone;
    played.tape = &players[i]->tape();
    played.outputs = std::move(replayed.value().outputs);
    std::rotate(players.begin(), players.begin() + static_cast<long>(i), players.begin() + static_cast<long>(i) + 1);
    break;
  }
  return played;
}

Player::Find weights_at(std::uint64_t base, std::uint64_t bytes, const executor::Compute& compute) {
  return [base, bytes, compute](const Place& place) -> Result<c10::Storage> {
    if (place.kind != Class::kWeight)
      return Status(Code::kInvalid, "a tape uses storage " + std::to_string(place.value) + " of another session");
    if (place.value > bytes || place.bytes > bytes - place.value)
      return Status(Code::kInvalid, "a tape's weight lies outside of its model");
    // Exactly as large as what is used: kernels take tensors that share a storage for aliases of each other.
    return compute.at(base + place.value, place.bytes);
  };
}

Shelf::Shelf(Origin here, executor::Residency* residency, const executor::Compute& compute)
    : here_(std::move(here)),
      residency_(residency),
      compute_(compute),
      generators_(compute.device()),
      arena_(executor::Arena::make()) {}

Result<Signature> Shelf::load(std::span<const std::byte> file, const Player::Find& find) {
  auto tape = tape::load(file);
  if (!tape.ok()) return tape.status();
  ROUSE_RETURN_IF_ERROR(fits(tape.value().origin, here_));
  const Signature signature = tape.value().origin.signature;
  const auto found = players_.find(signature);
  if (found == players_.end() ? players_.size() >= kMaxSignatures : found->second.size() >= kMaxVariants)
    return Status(Code::kExhausted, "there are as many tapes of this function as there may be");
  auto player = Player::prepare(std::move(tape).value(), find, compute_);
  if (!player.ok()) return player.status();
  player.value()->rehearse(arena_.get());
  players_[signature].push_back(std::move(player).value());
  return signature;
}

Result<Played> Shelf::replay(const Signature& signature, std::span<const c10::Storage> inputs) {
  const auto found = players_.find(signature);
  if (found == players_.end()) return Played{};
  return play(found->second, inputs, {generators_, residency_, arena_.get()});
}

std::vector<Shelf::Info> Shelf::info() const {
  std::vector<Info> all;
  for (const auto& [signature, players] : players_) {
    Info info{signature, players.size(), 0, 0};
    for (const auto& player : players) {
      info.replays += player->stats().replays;
      info.guards_missed += player->stats().guards_missed;
    }
    all.push_back(info);
  }
  return all;
}

}  // namespace rouse::tape
