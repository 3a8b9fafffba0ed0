// What a recorder knows of one signature.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rouse/tape/recorder.h"

namespace rouse::tape {

struct Recorder::Entry {
  Signature signature{};
  std::vector<Tape> candidates;
  std::vector<std::unique_ptr<Player>> players;
  // Of what tapes hold and do not change, for files: by name.
  std::map<std::uint64_t, std::vector<std::byte>> captured;
  std::uint32_t recorded = 0, fruitless = 0;
  std::string refused;
};

}  // namespace rouse::tape
