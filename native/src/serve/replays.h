// Tapes that answer requests without a session: loaded from files, found by a request's inputs, replayed.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rouse/serve/backend.h"

namespace rouse::serve {

// What tapes have to have been recorded for, to be replayed here.
struct ReplayPlace {
  std::string torch_version;
  std::string device;  // As tapes say it: "cpu".
  uint64_t scratch_bytes = 0;
};

// Thread-safe, but for `execute` and `drop`, which are called in a turn on the device.
class Replays {
 public:
  explicit Replays(ReplayPlace place) : place_(std::move(place)) {}
  ~Replays();

  // Adds tapes of a mapped model: all of the files, or none. BAD_TAPE, TAPE_MISMATCH, TOO_MANY_TAPES.
  Answer<std::vector<TapeInfo>> load(const ModelSpec& model, const std::vector<TapeFile>& files);
  // Before the model is unmapped: its tapes name its addresses.
  void drop(const std::string& version_id);
  std::vector<TapeInfo> info(const std::string& version_id) const;
  // The outputs as a serialised TensorBatch. NO_TAPE, GUARD_MISSED; REPLAY_FAILED.
  Answer<std::string> execute(const std::string& version_id, const ExecuteRequest& request);

 private:
  struct Version;

  std::shared_ptr<Version> find(const std::string& version_id) const;

  const ReplayPlace place_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Version>> versions_;
};

}  // namespace rouse::serve
