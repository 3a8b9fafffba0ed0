// A session over rings: reads messages, hands them to an engine, sends its answers.
#pragma once

#include <chrono>
#include <vector>

#include "rouse/executor/engine.h"
#include "rouse/ring/ring.h"

namespace rouse::executor {

class RingResponder final : public Responder {
 public:
  // Gives up on a client that does not read for `patience`.
  RingResponder(ring::Producer& out, std::chrono::milliseconds patience) : out_(out), patience_(patience) {}
  Status send(std::span<const std::byte> head, std::span<const std::byte> body) override;

 private:
  ring::Producer& out_;
  std::chrono::milliseconds patience_;
};

class Session {
 public:
  Session(ring::Channel& channel, Engine& engine);

  // Handles messages until `deadline`, or until none came for `idle` (a turn's end, where sessions share a thread).
  // kPeerGone: the client has ended; any other error: it broke the protocol, and was told.
  Status run(ring::Clock::time_point deadline, std::chrono::microseconds idle);

 private:
  Status one(std::span<const std::byte> shared);
  ring::Channel& channel_;
  Engine& engine_;
  RingResponder responder_;
  std::vector<std::uint64_t> copy_;  // The message, where the client cannot change it any more.
};

}  // namespace rouse::executor
