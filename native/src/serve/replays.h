// Tapes that answer requests without a session: loaded from files, found by a request's inputs, replayed.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "models.h"
#include "rouse/executor/compute.h"
#include "rouse/serve/backend.h"

namespace rouse::serve {

// What tapes have to have been recorded for, to be replayed here.
struct ReplayPlace {
  std::string torch_version;
  std::string device;  // As tapes say it: "cpu".
  executor::Compute compute;
  uint64_t scratch_bytes = 0;
};

struct ReplayCounts {
  std::atomic<uint64_t> replays{0};
  std::atomic<uint64_t> guards_missed{0};
};

// `info` is for any thread; everything else is done in a turn on the device.
class Replays {
 public:
  explicit Replays(ReplayPlace place);
  ~Replays();

  // Adds tapes of a mapped model, up to the first that does not hold. BAD_TAPE, TAPE_MISMATCH, TOO_MANY_TAPES,
  // LOAD_FAILED.
  Answer<std::vector<TapeInfo>> load(const MappedModel& model, const std::vector<TapeFile>& files);
  // Before the model is unmapped: its tapes name its addresses.
  void drop(const std::string& version_id);
  std::vector<TapeInfo> info(const std::string& version_id) const;
  // NO_TAPE, GUARD_MISSED; REPLAY_FAILED; STALE_LEASE, SWAP_FAILED, SWAP_TOO_SLOW where weights do not arrive.
  Answer<Executed> execute(const std::string& version_id, const ExecuteRequest& request, transfer::Deadline deadline);

 private:
  struct Version;

  Answer<std::vector<TapeInfo>> load_all(const MappedModel& model, const std::vector<TapeFile>& files);
  Answer<Executed> replay(const std::string& version_id, const ExecuteRequest& request, transfer::Deadline deadline);
  Version* find(const std::string& version_id);

  const ReplayPlace place_;
  std::map<std::string, std::unique_ptr<Version>> versions_;
  mutable std::mutex mutex_;
  // By version, then by kind of request.
  std::map<std::string, std::map<std::string, std::shared_ptr<ReplayCounts>>> counts_;
};

}  // namespace rouse::serve
