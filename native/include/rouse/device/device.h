// The memory of one device, behind one interface: fixed ranges of addresses, physical chunks mapped under them, pinned
// host memory, copy streams and events. Implementations: `host` (host.h) and `cuda` (cuda.h); one conformance suite
// (tests/device) runs against each.
//
// Thread-safe, but for this: nobody may use memory that is being unmapped, and a stream belongs to one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "rouse/base/status.h"

namespace rouse::device {

// Models have their addresses from here on, the same in every process, on every node.
inline constexpr uint64_t kModelBase = 0x5000'0000'0000;

using Deadline = std::chrono::steady_clock::time_point;

// Bytes of physical memory. At every idle moment free + reserved + mapped = capacity.
struct Usage {
  uint64_t capacity = 0;
  uint64_t free = 0;
  uint64_t reserved = 0;  // in chunks that are mapped nowhere
  uint64_t mapped = 0;    // in chunks that are mapped
  bool adds_up() const { return free + reserved + mapped == capacity; }
};

// Names one chunk of physical memory; never used again for another.
struct ChunkId {
  uint64_t number = 0;
  bool operator==(const ChunkId&) const = default;
};

// Something that a stream will have done.
class Event {
 public:
  virtual ~Event() = default;
  // Whether it is done: kOk. Not yet: kRefused. It never will be: what failed.
  virtual Status query() = 0;
  // Waits for it. kDeadline; or what failed.
  virtual Status wait(Deadline deadline) = 0;
};

class Device;

// Copies in order. Host memory that is copied from or to stays until an event recorded after it is done.
class Stream {
 public:
  virtual ~Stream() = default;
  // [to, to + bytes) is mapped on this device: kInvalid where it is not, and nothing is copied.
  virtual Status copy_in(uint64_t to, const void* from, uint64_t bytes) = 0;
  virtual Status copy_out(void* to, uint64_t from, uint64_t bytes) = 0;
  // From another device of the same kind, in this process, over whatever links the two.
  virtual Status copy_peer(uint64_t to, Device& source, uint64_t from, uint64_t bytes) = 0;
  virtual Status zero(uint64_t to, uint64_t bytes) = 0;
  virtual Result<std::unique_ptr<Event>> record() = 0;
};

// Host memory that the device reaches directly; freed with the object, which ends before its device.
class PinnedMemory {
 public:
  virtual ~PinnedMemory() = default;
  virtual void* data() const = 0;
  virtual uint64_t bytes() const = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const char* kind() const = 0;
  // What tapes that were recorded on it hold for: "cpu", "cuda:sm_90".
  virtual std::string architecture() const = 0;
  // For people: model and number.
  virtual std::string describe() const = 0;
  // Ranges, chunks and mappings are multiples of this.
  virtual uint64_t granularity() const = 0;
  virtual Usage usage() const = 0;

  // Takes exactly this range of addresses. kMismatch where it is not to be had; then nothing is taken.
  virtual Status reserve(uint64_t address, uint64_t bytes) = 0;
  // Gives a range back. kRefused while something is mapped in it; kNotFound where none starts there.
  virtual Status release(uint64_t address) = 0;

  // Takes physical memory, with whatever bytes are in it. kExhausted beyond the capacity or what the machine has.
  virtual Result<ChunkId> create(uint64_t bytes) = 0;
  // Gives it back. kRefused while it is mapped.
  virtual Status destroy(ChunkId chunk) = 0;
  // Puts a chunk at an address inside one reserved range. kRefused where something else or the chunk is mapped already.
  virtual Status map(ChunkId chunk, uint64_t address) = 0;
  virtual Status unmap(ChunkId chunk) = 0;

  // Host memory for fast copies. Slow to make (tens of seconds for tens of gigabytes): made once, at start.
  virtual Result<std::unique_ptr<PinnedMemory>> pin(uint64_t bytes) = 0;
  // Makes existing host memory so, as a mapped image; it must stay mapped while the object lives.
  virtual Result<std::unique_ptr<PinnedMemory>> pin_existing(const void* data, uint64_t bytes) = 0;

  virtual Result<std::unique_ptr<Stream>> make_stream() = 0;
};

}  // namespace rouse::device
