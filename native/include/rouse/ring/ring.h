// Two byte rings in one memfd, one a direction, with futex doorbells: how a client and its executor talk.
//
// One producer and one consumer a ring. A message is contiguous (the data pages are mapped twice, one after the other)
// and a multiple of 8 bytes. Publishing is a store; a system call is made only for a side that sleeps. Positions that
// the other side wrote are checked at every use: nonsense is a kInvalid status, never an access outside the ring.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "rouse/base/status.h"

namespace rouse::ring {

using Clock = std::chrono::steady_clock;

inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::uint64_t kMagic = 0x474e'4952'4553'554full;
inline constexpr std::size_t kDefaultBytes = 4u << 20;
inline constexpr std::size_t kMaxBytes = 1u << 30;

// One direction's shared state. Each side's words have cache lines of their own.
struct alignas(64) Control {
  alignas(64) std::atomic<std::uint64_t> head;  // Published by the producer, bytes ever written.
  std::atomic<std::uint32_t> bell;              // Futex of a consumer that sleeps.
  alignas(64) std::atomic<std::uint64_t> tail;  // Released by the consumer, bytes ever read.
  std::atomic<std::uint32_t> room;              // Futex of a producer that sleeps.
  alignas(64) std::atomic<std::uint32_t> consumer_sleeps;
  std::atomic<std::uint32_t> producer_sleeps;
};
static_assert(sizeof(Control) == 192);

struct alignas(64) Head {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t reserved;
  std::uint64_t bytes;  // Of each direction's data.
  std::atomic<std::uint32_t> dead;
};
static_assert(sizeof(Head) == 64);

struct Memory;  // The mapping, shared by the two ends.

class Producer {
 public:
  // Room for `bytes` (a multiple of 8, at most a quarter of the ring), waiting until `deadline` for the other side to
  // read. Publishes what was committed before it waits. kDeadline, kPeerGone, kInvalid.
  Result<std::byte*> reserve(std::size_t bytes, Clock::time_point deadline);
  // The message in the room reserved last is complete. It is seen after flush().
  void commit(std::size_t bytes) { written_ += bytes; }
  // Publishes and rings the bell. Cheap where nothing is new.
  void flush();
  std::size_t unflushed() const { return written_ - published_; }
  // The largest message that reserve() takes.
  std::size_t max_message() const { return bytes_ / 4; }

 private:
  friend class Channel;
  Status wait_room(std::size_t bytes, Clock::time_point deadline);
  Memory* memory_ = nullptr;
  Control* control_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t published_ = 0;
  std::uint64_t tail_ = 0;  // As last seen.
};

class Consumer {
 public:
  // The next whole message (its first word's lower half is its size), waiting until `deadline`. The bytes stay until
  // release(); the producer can still change them: copy before checking. An empty span: nothing came in time.
  Result<std::span<const std::byte>> next(Clock::time_point deadline);
  // The message that next() gave is done with.
  void release();
  // Microseconds that next() polls before it sleeps.
  void set_spin(std::chrono::microseconds spin) { spin_ = spin; }

 private:
  friend class Channel;
  Status wait_data(Clock::time_point deadline);
  Status refresh();
  Memory* memory_ = nullptr;
  Control* control_ = nullptr;
  const std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint64_t read_ = 0;
  std::uint64_t head_ = 0;  // As last seen.
  std::size_t current_ = 0;
  std::chrono::microseconds spin_{30};
};

// Which end of the pair of rings this is.
enum class Side { kClient, kExecutor };

class Channel {
 public:
  // A new memfd with both rings, `bytes` a direction (a power of two, at least 64 KiB).
  static Result<std::unique_ptr<Channel>> create(Side side, std::size_t bytes = kDefaultBytes);
  // Rings that another process made; takes the descriptor over. The memfd must be sealed against shrinking.
  static Result<std::unique_ptr<Channel>> open(Side side, int descriptor);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int descriptor() const;
  Producer& out() { return out_; }
  Consumer& in() { return in_; }
  // One of the two sides has ended, or shall: wakes all waits on both sides, which return kPeerGone once what was
  // published is read. Safe from any thread.
  void mark_dead();
  bool dead() const;

 private:
  Channel() = default;
  static Result<std::unique_ptr<Channel>> map(Side side, int descriptor, std::size_t bytes);
  std::unique_ptr<Memory> memory_;
  Producer out_;
  Consumer in_;
};

}  // namespace rouse::ring
