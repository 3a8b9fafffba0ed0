// What the process of an executor needs of the device it serves. The program gives it PyTorch's engine; tests give it
// something trivial.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "rouse/base/status.h"
#include "rouse/ring/ring.h"
#include "rouse/serve/link_server.h"
#include "rouse/serve/rpc_error.h"
#include "rouse/serve/tensors.h"

namespace rouse::serve {

struct SessionSpec {
  std::string session_id;
  std::string version_id;  // Empty: scratch only.
  uint64_t scratch_bytes = 0;
  bool record = false;  // Whether its requests are recorded as tapes.
  // Where requests wait for a second one like them, over the sessions of the version; empty: nowhere.
  std::string candidates_folder;
};

// Of a tape's file.
inline constexpr uint64_t kMaxTapeBytes = 256 << 20;

struct ModelGroup {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct ModelSpec {
  std::string version_id;
  std::string attachment_id;
  uint64_t base = 0;
  uint64_t bytes = 0;
  std::string image_path;
  std::string layout;  // Digest of how the weights lie in the range; tapes must agree.
  std::vector<ModelGroup> groups;
  std::string order_path;  // A tape: without groups, what it uses first is copied first.
  // What replays of its tapes may hold beside the weights; 0: as much as the executor allows a session.
  uint64_t working_bytes = 0;
};

// Which request a tape answers: its inputs in the order in which they were recorded, and what its outputs are called.
struct TapeTensor {
  std::string name;
  std::string datatype;
  std::vector<int64_t> shape;
};
struct TapeFile {
  std::string path;
  std::vector<TapeTensor> inputs;
  std::vector<std::string> output_names;
};

struct TapeInfo {
  std::string signature;
  uint64_t replays = 0;
  uint64_t guards_missed = 0;
};

// What a session recorded: files by the signature of the requests (as in BEGIN, in hexadecimal), and why others of its
// requests gave no tape.
struct RecordedTape {
  std::string signature;
  std::string path;
};
struct RefusedTape {
  std::string signature;
  std::string reason;
};
struct RecordedTapes {
  std::vector<RecordedTape> tapes;
  std::vector<RefusedTape> refused;
};

struct Executed {
  std::string outputs;  // A serialised TensorBatch.
  double device_ms = 0;
  double input_ms = 0;
  double output_ms = 0;
};

struct MemoryInfo {
  uint64_t capacity_bytes = 0;
  uint64_t mapped_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t group_bytes = 0;  // What a swap copies before anybody is told.
};

// How far a model's swap has come.
struct SwapInfo {
  uint64_t resident_bytes = 0;
  std::string failure;  // Why no more will come; empty: more comes, or all is there.
};

// What a version's sessions and replays hold of the device beside its weights.
struct WorkingInfo {
  uint64_t held_bytes = 0;
  uint64_t most_bytes = 0;  // At one time, since it was mapped.
};

// What went right, or the error that the caller gets.
template <typename T>
using Answer = std::variant<T, RpcError>;

// One session's side of the device. Made, used and ended on the session's own thread, in its turns.
class SessionWork {
 public:
  virtual ~SessionWork() = default;
  // Handles messages until `deadline`, or until there is none now, and flushes its answers. Not ok: the session ends.
  virtual Status run(ring::Channel& channel, ring::Clock::time_point deadline) = 0;
  virtual uint64_t scratch_bytes() const = 0;
  // The most that it held of the device beside the weights.
  virtual uint64_t most_bytes() const = 0;
  // Writes the tapes recorded so far as files into `folder`. Called in a turn, on any thread.
  virtual Answer<RecordedTapes> save_tapes(const std::string& folder) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string device() const = 0;
  virtual std::string torch_version() const = 0;
  virtual MemoryInfo memory() const = 0;

  // Called on the thread that will handle its messages.
  virtual Result<std::unique_ptr<SessionWork>> open_session(const SessionSpec& spec) = 0;

  // These may block. `map_model` is called beside whatever computes, and returns before all of the model is there; the
  // others are called in a turn on the device.
  virtual Answer<std::monostate> map_model(const ModelSpec& spec) = 0;
  virtual Answer<uint64_t> unmap_model(const std::string& version_id) = 0;
  virtual Answer<std::vector<TapeInfo>> load_tapes(const std::string& version_id,
                                                   const std::vector<TapeFile>& files) = 0;
  virtual std::vector<TapeInfo> tapes(const std::string& version_id) const = 0;

  // These are for any thread and do not block.
  virtual SwapInfo swap(const std::string& version_id) const = 0;
  virtual WorkingInfo working(const std::string& version_id) const = 0;
  // Its swap ends, and who waits for its bytes is told: before `unmap_model`, which needs their turn.
  virtual void cancel_swap(const std::string& version_id) = 0;

  // Replays a version's tape for these inputs. `call` ended: nobody waits any more.
  virtual Answer<Executed> execute(const std::string& version_id, const ExecuteRequest& request,
                                   const LinkCall& call) = 0;
};

}  // namespace rouse::serve
