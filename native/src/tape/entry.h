// What a recorder knows of one signature.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rouse/tape/recorder.h"

namespace rouse::tape {

// One request's stream.
struct Recorder::Candidate {
  Tape tape;
  std::string file;      // it was kept as; empty: it was not
  bool earlier = false;  // of an earlier session, which held other storages under other names
};

struct Recorder::Entry {
  Signature signature{};
  bool looked = false;  // for candidates of earlier sessions
  std::vector<Candidate> candidates;
  // Those that became players, as long as those are not saved.
  std::vector<std::string> verified;
  std::vector<std::unique_ptr<Player>> players;
  // Of what tapes hold and do not change, for files: by name.
  std::map<std::uint64_t, std::vector<std::byte>> captured;
  std::uint32_t recorded = 0, fruitless = 0;
  std::string refused;
};

}  // namespace rouse::tape
