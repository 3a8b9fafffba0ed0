#include "torch_backend.h"

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <fcntl.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "arrival.h"
#include "models.h"
#include "replays.h"
#include "rouse/base/fd.h"
#include "rouse/base/text.h"
#include "rouse/device/cuda.h"
#include "rouse/device/host.h"
#include "rouse/executor/account.h"
#include "rouse/executor/allocator.h"
#include "rouse/executor/compute.h"
#include "rouse/executor/session.h"
#include "rouse/executor/warm_up.h"
#include "rouse/serve/log.h"
#include "rouse/tape/guarded.h"
#include "rouse/tape/recorder.h"
#include "tenant.h"

namespace rouse::serve {

namespace {

// Of PyTorch's own helper threads, which work for no session.
constexpr uint64_t kSharedBytes = 4ull << 30;

// What an executor computes on and with.
struct Where {
  executor::Compute compute;
  std::string architecture;  // As tapes say it: "cpu".
};

tape::Origin origin_of(const Where& where, const std::optional<MappedModel>& model) {
  tape::Origin origin;
  origin.torch_version = TORCH_VERSION;
  origin.device = where.architecture;
  if (model) {
    origin.layout = model->spec.layout;
    origin.model_base = model->spec.base;
    origin.model_bytes = model->spec.bytes;
  }
  return origin;
}

Status write_file(const std::string& path, std::span<const std::byte> bytes) {
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  for (size_t at = 0; fd.valid() && at < bytes.size();) {
    const ssize_t count = ::write(fd.get(), bytes.data() + at, bytes.size() - at);
    if (count <= 0) return Status(Code::kFailed, text(path, " cannot be written: ", errno_text()));
    at += static_cast<size_t>(count);
  }
  return fd.valid() ? Status() : Status(Code::kFailed, text(path, " cannot be written: ", errno_text()));
}

// One session's engine. Guards of thread-local state are members: all of it lives on the session's thread.
class TorchWork : public SessionWork {
 public:
  TorchWork(const Where& where, const SessionSpec& spec, const std::optional<MappedModel>& model)
      : on_(where.compute.device()),
        version_(model ? model->working : nullptr),
        account_(std::make_shared<executor::Account>(spec.scratch_bytes, version_)),
        heap_(executor::Heap::make(account_)),
        use_(*heap_),
        arrival_(model ? model->residency : nullptr) {
    if (spec.record) {
      tape::RecorderOptions recording;
      recording.origin = origin_of(where, model);
      recording.residency = &arrival_;
      recording.candidates = spec.candidates_folder;
      recorder_.emplace(std::move(recording));
    }
    executor::EngineOptions options;
    options.max_bytes = spec.scratch_bytes;
    options.observer = recorder_ ? &*recorder_ : nullptr;
    options.residency = &arrival_;
    options.compute = where.compute;
    engine_.emplace(options);
    if (recorder_) recorder_->attach(*engine_);
    // Not writable: the version's other sessions and its tapes read the same bytes.
    if (model && model->spec.bytes > 0) added_ = engine_->add_range({model->spec.base, model->spec.bytes, false});
  }
  const Status& status() const { return added_; }

  Status run(ring::Channel& channel, ring::Clock::time_point deadline) override {
    if (!session_) session_.emplace(channel, *engine_);
    const Status ran = session_->run(deadline, std::chrono::microseconds(0));
    // A turn is over when the device is done with it: the next one's time is not this session's. What failed there is
    // kept for the client's next synchronisation.
    engine_->settle();
    if (!engine_->compute().host()) count_device();
    return ran;
  }
  uint64_t scratch_bytes() const override { return engine_->bytes(); }
  uint64_t most_bytes() const override { return account_->most(); }

  Answer<RecordedTapes> save_tapes(const std::string& folder) override {
    RecordedTapes recorded;
    if (!recorder_) return recorded;
    for (const tape::SignatureInfo& info : recorder_->info()) {
      const std::string signature = tape::hex(info.signature);
      if (!info.refused.empty()) recorded.refused.push_back({signature, info.refused});
      if (info.tapes == 0) continue;
      Result<std::vector<std::vector<std::byte>>> files = recorder_->save(info.signature);
      if (!files.ok()) {
        recorded.refused.push_back({signature, files.status().text()});
        continue;
      }
      for (size_t i = 0; i < files.value().size(); ++i) {
        const std::string path = text(folder, "/", signature, ".", i, ".tape");
        const Status written = write_file(path, files.value()[i]);
        if (!written.ok()) return RpcError{RpcCode::kInternal, "SAVE_FAILED", written.text()};
        recorded.tapes.push_back({signature, path});
      }
      recorder_->saved(info.signature);
    }
    return recorded;
  }

 private:
  // Memory of a device with an allocator of its own is in no heap of ours. It is one version's alone, so that what the
  // allocator says is this version's.
  void count_device() {
    account_->reached(engine_->most_bytes());
    if (version_) version_->reached(std::max(engine_->most_bytes(), engine_->compute().most_bytes()));
  }

  const c10::InferenceMode inference_;
  const c10::DeviceGuard on_;
  const std::shared_ptr<executor::Account> version_;  // null: of no version
  const std::shared_ptr<executor::Account> account_;
  const executor::Heap::Handle heap_;
  const executor::UseHeap use_;
  Arrival arrival_;
  std::optional<tape::Recorder> recorder_;  // It outlives the engine, which shows it everything.
  std::optional<executor::Engine> engine_;
  std::optional<executor::Session> session_;
  Status added_;
};

class TorchBackend : public Backend {
 public:
  TorchBackend(std::string name, Where where, std::unique_ptr<Models> models, uint64_t scratch_bytes)
      : name_(std::move(name)),
        where_(std::move(where)),
        tenant_(where_.compute.host() ? Tenant::kMany : Tenant::kOne),
        models_(std::move(models)),
        replays_({TORCH_VERSION, where_.architecture, where_.compute, scratch_bytes}) {}

  std::string device() const override { return name_; }
  std::string torch_version() const override { return TORCH_VERSION; }
  MemoryInfo memory() const override { return models_->memory(); }

  Result<std::unique_ptr<SessionWork>> open_session(const SessionSpec& spec) override {
    ROUSE_RETURN_IF_ERROR(tenant_.admit(spec.version_id));
    std::unique_ptr<TorchWork> work;
    // What a session begins with may be more than its limit already.
    ROUSE_RETURN_IF_ERROR(tape::guarded("a session", [&] {
      work = std::make_unique<TorchWork>(where_, spec, models_->find(spec.version_id));
      return work->status();
    }));
    return std::unique_ptr<SessionWork>(std::move(work));
  }
  Answer<std::monostate> map_model(const ModelSpec& spec) override {
    if (const Status admitted = tenant_.admit(spec.version_id); !admitted.ok())
      return RpcError{RpcCode::kFailedPrecondition, "DEVICE_NOT_SHARED", admitted.text()};
    return models_->map(spec);
  }
  Answer<uint64_t> unmap_model(const std::string& version_id) override {
    replays_.drop(version_id);
    const Answer<uint64_t> unmapped = models_->unmap(version_id);
    if (std::holds_alternative<uint64_t>(unmapped) && !where_.compute.host()) {
      // Other executors have the same device: what this one keeps is theirs to use. On the CPU the device is its own.
      Status trimmed = models_->trim();
      if (trimmed.ok()) trimmed = where_.compute.trim();
      if (!trimmed.ok()) log_warning("memory stays with version " + version_id + ": " + trimmed.text());
    }
    return unmapped;
  }
  Answer<std::vector<TapeInfo>> load_tapes(const std::string& version_id, const std::vector<TapeFile>& files) override {
    const std::optional<MappedModel> model = models_->find(version_id);
    if (!model) return RpcError{RpcCode::kNotFound, "MODEL_NOT_MAPPED", "version " + version_id + " is not mapped"};
    return replays_.load(*model, files);
  }
  std::vector<TapeInfo> tapes(const std::string& version_id) const override { return replays_.info(version_id); }
  SwapInfo swap(const std::string& version_id) const override { return models_->swap(version_id); }
  WorkingInfo working(const std::string& version_id) const override { return models_->working(version_id); }
  void cancel_swap(const std::string& version_id) override { models_->cancel(version_id); }
  Answer<Executed> execute(const std::string& version_id, const ExecuteRequest& request,
                           const LinkCall& call) override {
    return replays_.execute(version_id, request, call.deadline());
  }

 private:
  const std::string name_;
  const Where where_;
  Tenant tenant_;
  const std::unique_ptr<Models> models_;
  Replays replays_;
};

}  // namespace

namespace {

Result<Hardware> find_hardware(const Config& config) {
  const uint64_t capacity = config.capacity_mib << 20;
  const auto with = [](const executor::Compute& compute,
                       Result<std::unique_ptr<device::Device>> memory) -> Result<Hardware> {
    if (!memory.ok()) return memory.status();
    return Hardware{compute, std::move(memory).value()};
  };
  if (config.device.starts_with("host:")) return with({}, device::make_host_device({.capacity = capacity}));
  const int number = std::atoi(config.device.c_str() + sizeof("cuda"));
  const Result<executor::Compute> compute =
      executor::Compute::make(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(number)));
  if (!compute.ok()) return compute.status();
  return with(compute.value(), device::make_cuda_device({.ordinal = number, .capacity = capacity}));
}

}  // namespace

Result<std::unique_ptr<Backend>> make_torch_backend(const Config& config, Hardware hardware) {
  Where where{hardware.compute, hardware.memory->architecture()};
  ROUSE_RETURN_IF_ERROR(executor::install_allocator(kSharedBytes));
  at::set_num_threads(static_cast<int>(config.threads));
  ROUSE_RETURN_IF_ERROR(executor::warm_up(where.compute));
  ModelsOptions swaps;
  swaps.group_bytes = config.group_kib << 10;
  swaps.link.bytes_per_second = config.link_mib_s << 20;
  swaps.pin_images = !where.compute.host();
  Result<std::unique_ptr<Models>> models = Models::make(std::move(hardware.memory), swaps);
  if (!models.ok()) return models.status();
  return std::unique_ptr<Backend>(std::make_unique<TorchBackend>(
      config.device, std::move(where), std::move(models).value(), config.scratch_mib << 20));
}

Result<std::unique_ptr<Backend>> make_torch_backend(const Config& config) {
  Result<Hardware> hardware = find_hardware(config);
  if (!hardware.ok()) return hardware.status();
  return make_torch_backend(config, std::move(hardware).value());
}

}  // namespace rouse::serve
