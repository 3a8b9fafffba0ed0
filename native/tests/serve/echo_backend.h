// A device that is trivial, for tests of everything around it: sessions answer SYNC, tapes give their inputs back.
#pragma once

#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "rouse/serve/backend.h"
#include "rouse/wire/format.h"

namespace rouse::serve::testing {

class EchoWork : public SessionWork {
 public:
  explicit EchoWork(uint64_t scratch_bytes) : scratch_bytes_(scratch_bytes) {}

  Status run(ring::Channel& channel, ring::Clock::time_point deadline) override {
    while (ring::Clock::now() < deadline) {
      Result<std::span<const std::byte>> message = channel.in().next(ring::Clock::time_point::min());
      if (!message.ok()) return message.status();
      if (message.value().empty()) return {};
      const std::vector<std::byte> copy(message.value().begin(), message.value().end());
      channel.in().release();
      ROUSE_RETURN_IF_ERROR(handle(copy, channel.out()));
    }
    return {};
  }
  uint64_t scratch_bytes() const override { return scratch_bytes_; }
  uint64_t most_bytes() const override { return scratch_bytes_; }
  Answer<RecordedTapes> save_tapes(const std::string&) override { return RecordedTapes(); }

 private:
  static Status handle(std::span<const std::byte> message, ring::Producer& out) {
    wire::Header header;
    std::memcpy(&header, message.data(), sizeof(header));
    // Taken, not answered.
    if (header.kind == static_cast<uint16_t>(wire::Kind::kCall)) return {};
    if (header.kind != static_cast<uint16_t>(wire::Kind::kSync) || message.size() != sizeof(wire::Sync)) {
      return Status(Code::kInvalid, "no message of kind " + std::to_string(header.kind));
    }
    Result<std::byte*> room = out.reserve(sizeof(wire::Sync), ring::Clock::now() + std::chrono::seconds(5));
    if (!room.ok()) return room.status();
    wire::Sync done;
    std::memcpy(&done, message.data(), sizeof(done));
    done.header.kind = static_cast<uint16_t>(wire::Kind::kDone);
    std::memcpy(room.value(), &done, sizeof(done));
    out.commit(sizeof(done));
    out.flush();
    return {};
  }

  uint64_t scratch_bytes_;
};

// A "tape" is a file with one line, its signature: the datatype of the first input.
class EchoBackend : public Backend {
 public:
  explicit EchoBackend(uint64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  std::string device() const override { return "host:0"; }
  std::string torch_version() const override { return "none"; }
  MemoryInfo memory() const override {
    const std::lock_guard lock(mutex_);
    return {capacity_bytes_, mapped_bytes_, capacity_bytes_ - mapped_bytes_};
  }
  Result<std::unique_ptr<SessionWork>> open_session(const SessionSpec& spec) override {
    return std::unique_ptr<SessionWork>(new EchoWork(spec.scratch_bytes));
  }
  Answer<std::monostate> map_model(const ModelSpec& spec) override {
    const std::lock_guard lock(mutex_);
    if (spec.bytes > capacity_bytes_ - mapped_bytes_) {
      return RpcError{RpcCode::kResourceExhausted, "DEVICE_MEMORY_FULL", "the device is full"};
    }
    mapped_bytes_ += spec.bytes;
    models_[spec.version_id].bytes = spec.bytes;
    models_[spec.version_id].working_bytes = spec.working_bytes;
    return std::monostate();
  }
  Answer<uint64_t> unmap_model(const std::string& version_id) override {
    const std::lock_guard lock(mutex_);
    const uint64_t bytes = models_[version_id].bytes;
    mapped_bytes_ -= bytes;
    models_.erase(version_id);
    return bytes;
  }
  Answer<std::vector<TapeInfo>> load_tapes(const std::string& version_id, const std::vector<TapeFile>& files) override {
    const std::lock_guard lock(mutex_);
    for (const TapeFile& wanted : files) {
      TapeInfo tape;
      std::ifstream file(wanted.path);
      if (!std::getline(file, tape.signature))
        return RpcError{RpcCode::kInvalidArgument, "BAD_TAPE", wanted.path + " is none"};
      models_[version_id].tapes.push_back(tape);
    }
    return models_[version_id].tapes;
  }
  std::vector<TapeInfo> tapes(const std::string& version_id) const override {
    const std::lock_guard lock(mutex_);
    const auto found = models_.find(version_id);
    return found == models_.end() ? std::vector<TapeInfo>() : found->second.tapes;
  }
  SwapInfo swap(const std::string& version_id) const override {
    const std::lock_guard lock(mutex_);
    const auto found = models_.find(version_id);
    return found == models_.end() ? SwapInfo{} : SwapInfo{found->second.bytes, ""};
  }
  // As much as replays may hold.
  WorkingInfo working(const std::string& version_id) const override {
    const std::lock_guard lock(mutex_);
    const auto found = models_.find(version_id);
    return found == models_.end() ? WorkingInfo{} : WorkingInfo{0, found->second.working_bytes};
  }
  void cancel_swap(const std::string&) override {}
  Answer<Executed> execute(const std::string& version_id, const ExecuteRequest& request,
                           const LinkCall& call) override {
    {
      const std::lock_guard lock(mutex_);
      for (TapeInfo& tape : models_[version_id].tapes) {
        if (request.inputs.empty() || request.inputs[0].datatype != tape.signature) continue;
        ++tape.replays;
        return Executed{write_tensors(request.inputs)};
      }
    }
    // For tests of deadlines: computes until nobody waits any more.
    while (request.request_id == "endless" && !call.ended()) std::this_thread::yield();
    return RpcError{RpcCode::kFailedPrecondition, "NO_TAPE", "version " + version_id + " has no tape for these inputs"};
  }

 private:
  struct Model {
    uint64_t bytes = 0;
    uint64_t working_bytes = 0;
    std::vector<TapeInfo> tapes;
  };

  const uint64_t capacity_bytes_;
  mutable std::mutex mutex_;
  uint64_t mapped_bytes_ = 0;
  std::map<std::string, Model> models_;
};

}  // namespace rouse::serve::testing
