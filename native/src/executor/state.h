// What an engine keeps, and how each message changes it. A method returns not ok where the session has to end; errors
// of operators become sticky.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "objects.h"
#include "rouse/executor/engine.h"
#include "storages.h"

namespace rouse::executor {

struct Engine::State {
  explicit State(EngineOptions given)
      : options(given), storages(given.max_bytes, given.compute), generators(given.compute.device()) {}

  Status dispatch(Engine& engine, std::span<const std::byte> message, Responder& responder);

  // engine.cpp: state and data.
  Status on_template(std::span<const std::byte> message);
  Status on_drop_template(std::span<const std::byte> message);
  Status on_create(std::span<const std::byte> message);
  Status on_resize(std::span<const std::byte> message);
  Status on_free(std::span<const std::byte> message);
  Status on_write(std::span<const std::byte> message);
  Status on_read(std::span<const std::byte> message, Responder& responder);
  Status on_sync(std::span<const std::byte> message, Responder& responder);
  Status on_seed(std::span<const std::byte> message, Responder& responder);
  Status on_setting(std::span<const std::byte> message);
  // engine_objects.cpp
  Status on_object(std::span<const std::byte> message);
  Status on_drop_object(std::span<const std::byte> message);
  // engine_calls.cpp: operators and requests.
  Status on_call(std::span<const std::byte> message, Responder& responder);
  Status on_begin(std::span<const std::byte> message);
  Status on_end(std::span<const std::byte> message);
  Status on_replay(Engine& engine, std::span<const std::byte> message, Responder& responder);

  Status gather(const Operation& operation, std::uint32_t number, std::span<const std::uint64_t> names, bool& skip);
  static Status read_only(std::uint64_t address);
  // Waits for what of these storages is weights.
  Status arrived(std::span<const std::uint64_t> storage_names);
  Status finish(std::uint32_t number, const std::shared_ptr<Operation>& operation, std::span<const std::uint64_t> slots,
                std::span<const std::uint64_t> results, std::uint16_t flags, Responder& responder);
  Status learn(std::uint32_t number, const std::shared_ptr<Operation>& operation, std::span<const std::uint64_t> slots,
               std::uint64_t first, bool keep, Responder& responder);
  Status poison(std::span<const std::uint64_t> names);
  // The session's limit, where no heap of ours keeps it: of what a call made, and of what it resized.
  Status within_limit(const Operation& operation, std::span<const std::uint64_t> slots);
  // A device that computes beside the host fails later than its operators were called: at a synchronisation.
  void fail_late(const Status& error);
  void settle();
  void synchronised();

  // The first error since the client heard of one; what follows is skipped until then.
  void fail(Status error, const std::string& operation, std::uint32_t number);
  // Sends the sticky error and forgets it.
  Status send_error(Responder& responder);
  Status send_data(std::uint64_t name, std::uint64_t offset, std::span<const std::byte> data, Responder& responder);

  EngineOptions options;
  Storages storages;
  Generators generators;
  Objects objects;
  std::vector<std::shared_ptr<Operation>> templates;
  // Why a template could not be made: calls of it fail with this, in order.
  std::unordered_map<std::uint32_t, Status> broken;
  // What the device was given since the last synchronisation, where it computes beside the host.
  bool busy = false;
  std::uint64_t unsynchronised = 0;  // operators
  std::shared_ptr<Operation> latest;
  Status sticky;
  std::string failed_operator;
  std::uint32_t failed_template = 0;
  std::uint64_t failed_sequence = 0;
  std::uint64_t sequence = 0;
  c10::ScalarType default_dtype = c10::ScalarType::Float;

  // Kept between calls, so that a warm call allocates nothing of its own.
  std::vector<std::uint64_t> names;
  std::vector<at::Tensor> tensors, returned;
  std::vector<std::byte> read_bytes;
  torch::jit::Stack stack;
};

}  // namespace rouse::executor
