// One session's state in the executor: its templates, its storages by name, its random numbers, its sticky error.
//
// Not thread-safe: one thread handles a session's messages, in order.
#pragma once

#include <ATen/core/Generator.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "rouse/base/status.h"
#include "rouse/executor/compute.h"
#include "rouse/executor/operation.h"
#include "rouse/wire/format.h"

namespace rouse::executor {

// Where answers go. Blocks while the client does not read, up to the responder's own deadline.
class Responder {
 public:
  virtual ~Responder() = default;
  // One message of `head` (its size is already that of the whole), then `body`, padded to a word.
  virtual Status send(std::span<const std::byte> head, std::span<const std::byte> body) = 0;
};

// A part of memory that the session may name by address, as a model's weights.
struct Range {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
  bool writable = false;
};

// Memory that may still be on its way in: asked before an operator reads it.
class Residency {
 public:
  virtual ~Residency() = default;
  // Nothing has to be waited for any more.
  virtual bool all_ready() const = 0;
  virtual Status wait_ready(std::uint64_t address, std::uint64_t bytes) = 0;
  // Rows of a table that starts at `table`; each number lies inside it.
  virtual Status wait_rows(std::uint64_t table, std::uint64_t row_bytes, std::span<const std::int64_t> rows) = 0;
};

class Engine;

// Sees all that a session does, after it was checked and done. Calls that failed or were skipped are not shown,
// on_error is. Spans are valid during the call only.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_begin(const wire::Begin& begin, std::span<const std::uint64_t> inputs) = 0;
  virtual void on_create(std::uint64_t name, std::uint64_t bytes) = 0;
  virtual void on_resize(std::uint64_t name, std::uint64_t bytes) = 0;
  virtual void on_free(std::span<const std::uint64_t> names) = 0;
  virtual void on_write(std::uint64_t name, std::uint64_t offset, std::span<const std::byte> data) = 0;
  virtual void on_read(std::uint64_t name, std::uint64_t offset, std::span<const std::byte> data) = 0;
  // `results` names the call's new storages. `learned`: the client waited to hear the results' shapes; what it does
  // next can depend on them.
  virtual void on_call(std::uint32_t number, const std::shared_ptr<Operation>& operation,
                       std::span<const std::uint64_t> slots, std::span<const std::uint64_t> results, bool learned) = 0;
  // A call returned something that is not a tensor, which Python now knows: items as on the wire.
  virtual void on_value(const std::shared_ptr<Operation>& operation, std::span<const std::byte> items) = 0;
  virtual void on_seed(const wire::Seed& seed) = 0;
  virtual void on_error(const Status& error) = 0;
  // `names[i]` with `outputs[i]`.
  virtual void on_end(std::uint64_t request, std::span<const std::uint64_t> names,
                      std::span<const TensorSpec> outputs) = 0;
  // REPLAY of a tape with the storages named; the observer puts the outputs' storages in and says how they look.
  virtual Status on_replay(Engine& engine, std::uint64_t tape, std::span<const std::uint64_t> inputs,
                           std::span<const std::uint64_t> outputs, std::vector<std::byte>& answer) = 0;
};

struct EngineOptions {
  std::uint64_t max_bytes = 1ull << 40;  // Of scratch storages together.
  Observer* observer = nullptr;          // Outlives the engine.
  Residency* residency = nullptr;        // Outlives the engine.
  Compute compute;                       // Where operators run; ranges are addresses of its memory.
};

class Engine {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The session may name addresses in it. Ranges do not overlap.
  Status add_range(const Range& range);
  void remove_range(std::uint64_t base);

  // One whole message, in memory that no other process can change (bytes of WRITE's data excepted). Not ok: what came
  // is no message of this protocol, the session has to end. Errors of operators are kept and sent when asked for.
  Status handle(std::span<const std::byte> message, Responder& responder);

  // Waits until the device has done what it was given. What failed there is sticky, as any operator's error.
  void settle();

  // The storage of that name; kNotFound where there is none or its operator failed.
  Result<c10::Storage> storage(std::uint64_t name) const;
  // Gives `name` that storage, as a call's result has it.
  Status put(std::uint64_t name, c10::Storage storage);
  std::shared_ptr<Operation> operation(std::uint32_t number) const;
  Generators& generators();
  const Compute& compute() const;
  // Bytes of scratch storages now.
  std::uint64_t bytes() const;
  // The most that they were.
  std::uint64_t most_bytes() const;
  const Status& sticky() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace rouse::executor
