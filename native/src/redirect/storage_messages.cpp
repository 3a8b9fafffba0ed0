// The client's operations on whole storages and generators.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "rouse/redirect/client.h"

namespace rouse::redirect {
namespace {

template <typename T>
std::span<const std::byte> bytes_of(const T& head) {
  return std::as_bytes(std::span(&head, 1));
}

void expect(std::span<const std::byte> answer, const RemoteError& error) {
  if (answer.empty()) Client::raise(error);
}

}  // namespace

std::uint64_t Client::create(std::uint64_t bytes) {
  const auto hold = lock();
  send_frees();
  const auto name = take_name();
  const wire::Create head{{}, name, bytes};
  send(wire::Kind::kCreate, bytes_of(head), {});
  return name;
}

void Client::bind(std::uint64_t address, std::uint64_t bytes) {
  TORCH_CHECK(address >= wire::kModelBase, "address ", address, " is below those of models");
  const auto hold = lock();
  {
    const std::lock_guard names(free_mutex_);
    bound_[address] += 1;
  }
  const wire::Create head{{}, address, bytes};
  send(wire::Kind::kCreate, bytes_of(head), {});
}

void Client::resize(std::uint64_t name, std::uint64_t bytes) {
  const auto hold = lock();
  const wire::Create head{{}, name, bytes};
  send(wire::Kind::kResize, bytes_of(head), {});
}

void Client::write(std::uint64_t name, std::uint64_t offset, std::span<const std::byte> data) {
  const auto hold = lock();
  for (std::size_t at = 0; at < data.size(); at += wire::kMaxDataBytes) {
    const auto part = data.subspan(at, std::min<std::size_t>(wire::kMaxDataBytes, data.size() - at));
    const wire::Span head{{}, name, offset + at, part.size()};
    send(wire::Kind::kWrite, bytes_of(head), part);
  }
}

void Client::read(std::uint64_t name, std::uint64_t offset, std::span<std::byte> data) {
  RemoteError error;
  const auto hold = lock();
  for (std::size_t at = 0; at < data.size(); at += wire::kMaxDataBytes) {
    const std::size_t count = std::min<std::size_t>(wire::kMaxDataBytes, data.size() - at);
    const wire::Span head{{}, name, offset + at, count};
    send(wire::Kind::kRead, bytes_of(head), {});
    const auto answer = wait(wire::Kind::kData, error);
    expect(answer, error);
    wire::Reader reader(answer);
    wire::Data got;
    std::span<const std::byte> part;
    TORCH_CHECK(reader.head(got) && got.name == name && got.offset == offset + at && got.count == count &&
                    reader.bytes(count, part),
                "the executor answered what was not asked");
    std::memcpy(data.data() + at, part.data(), count);
  }
}

void Client::synchronize() {
  RemoteError error;
  const auto hold = lock();
  const wire::Sync head{{}, counters.messages};
  send(wire::Kind::kSync, bytes_of(head), {});
  expect(wait(wire::Kind::kDone, error), error);
}

void Client::seed(std::uint32_t generator, std::uint64_t value) {
  const auto hold = lock();
  const wire::Seed head{{}, generator, static_cast<std::uint32_t>(wire::SeedAction::kSeed), value};
  send(wire::Kind::kSeed, bytes_of(head), {});
}

void Client::set_state(std::uint32_t generator, std::span<const std::byte> state) {
  const auto hold = lock();
  const wire::Seed head{{}, generator, static_cast<std::uint32_t>(wire::SeedAction::kState), state.size()};
  send(wire::Kind::kSeed, bytes_of(head), state);
}

std::vector<std::byte> Client::state(std::uint32_t generator) {
  RemoteError error;
  const auto hold = lock();
  const wire::Seed head{{}, generator, static_cast<std::uint32_t>(wire::SeedAction::kReadState), 0};
  send(wire::Kind::kSeed, bytes_of(head), {});
  const auto answer = wait(wire::Kind::kData, error);
  expect(answer, error);
  wire::Reader reader(answer);
  wire::Data got;
  std::span<const std::byte> state;
  TORCH_CHECK(reader.head(got) && reader.bytes(got.count, state), "the executor answered what was not asked");
  return {state.begin(), state.end()};
}

void Client::drop_generator(std::uint32_t generator) {
  const auto hold = lock();
  const wire::Seed head{{}, generator, static_cast<std::uint32_t>(wire::SeedAction::kDrop), 0};
  send(wire::Kind::kSeed, bytes_of(head), {});
}

}  // namespace rouse::redirect
