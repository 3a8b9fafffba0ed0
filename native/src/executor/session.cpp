#include "rouse/executor/session.h"

#include <algorithm>
#include <cstring>

#include "rouse/wire/words.h"

namespace rouse::executor {
namespace {

constexpr std::chrono::milliseconds kPatience{30'000};

}  // namespace

Status RingResponder::send(std::span<const std::byte> head, std::span<const std::byte> body) {
  const std::size_t bytes = head.size() + wire::padded(body.size());
  auto room = out_.reserve(bytes, ring::Clock::now() + patience_);
  if (!room.ok()) return room.status();
  std::byte* at = room.value();
  std::memcpy(at, head.data(), head.size());
  if (!body.empty()) std::memcpy(at + head.size(), body.data(), body.size());
  std::memset(at + head.size() + body.size(), 0, bytes - head.size() - body.size());
  out_.commit(bytes);
  out_.flush();
  return {};
}

Session::Session(ring::Channel& channel, Engine& engine)
    : channel_(channel), engine_(engine), responder_(channel.out(), kPatience) {}

Status Session::run(ring::Clock::time_point deadline, std::chrono::microseconds idle) {
  while (true) {
    auto message = channel_.in().next(std::min(deadline, ring::Clock::now() + idle));
    if (!message.ok()) return message.status();
    if (message.value().empty()) return {};
    auto handled = one(message.value());
    channel_.in().release();
    if (!handled.ok()) return handled;
    if (ring::Clock::now() >= deadline) return {};
  }
}

Status Session::one(std::span<const std::byte> shared) {
  // Copied before it is looked at: what was checked must be what is used.
  copy_.resize(shared.size() / 8);
  std::memcpy(copy_.data(), shared.data(), shared.size());
  const auto message = std::as_bytes(std::span(copy_));
  // The length was read before the copy; a client that changed it meanwhile is caught by the engine's comparison.
  auto handled = engine_.handle(message, responder_);
  if (handled.ok()) return handled;
  wire::Error head{};
  const std::string text = handled.text().substr(0, 4096);
  head.header = {static_cast<std::uint32_t>(sizeof(head) + wire::padded(text.size())),
                 static_cast<std::uint16_t>(wire::Kind::kError), wire::kErrorEnds};
  head.code = static_cast<std::uint32_t>(handled.code());
  head.text_bytes = static_cast<std::uint32_t>(text.size());
  wire::Writer body;
  body.text(text);
  auto told = responder_.send(std::as_bytes(std::span(&head, 1)), body.as_bytes());
  channel_.mark_dead();
  return told.ok() ? handled
                   : Status(handled.code(), handled.text() + " (the client was not told: " + told.text() + ")");
}

}  // namespace rouse::executor
