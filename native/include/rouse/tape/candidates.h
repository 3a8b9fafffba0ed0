// Streams that wait for a second request like them, kept as files between the sessions of one version. No PyTorch here.
//
// A candidate is what one request did, and nothing was compared with it yet. Its file is marked as such, so that load()
// never takes it for a tape, and what is in it is never replayed: it is only compared with what a request does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rouse/tape/signature.h"
#include "rouse/tape/tape.h"

namespace rouse::tape {

// Bounds of one version's folder; the oldest files go first.
inline constexpr std::size_t kMaxKeptFiles = 64;
inline constexpr std::uint64_t kMaxKeptBytes = 16u << 20;

struct Kept {
  Tape tape;
  std::string path;
};

class Candidates {
 public:
  // `folder`: of one version, where nobody else writes; empty: nothing is kept.
  explicit Candidates(std::string folder) : folder_(std::move(folder)) {}

  // Up to `most` of a signature, the newest last. A file that cannot be read, or was made with something else than what
  // is `here`, is removed.
  std::vector<Kept> of(const Signature& signature, const Origin& here, std::size_t most) const;
  // The path of the file that it became; empty where it is not kept: it names storages of its session, or is too large.
  std::string add(const Tape& tape) const;
  void remove(const std::string& path) const;

 private:
  const std::string folder_;
};

}  // namespace rouse::tape
