#include "torch_backend.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/version.h>

#include <optional>

#include "models.h"
#include "rouse/device/host.h"
#include "rouse/executor/allocator.h"
#include "rouse/executor/session.h"

namespace rouse::serve {

namespace {

// Of PyTorch's own helper threads, which work for no session.
constexpr uint64_t kSharedBytes = 4ull << 30;

// One session's engine. Guards of thread-local state are members: all of it lives on the session's thread.
class TorchWork : public SessionWork {
 public:
  TorchWork(const SessionSpec& spec, const std::optional<ModelSpec>& model)
      : heap_(executor::Heap::make(spec.scratch_bytes)),
        use_(*heap_),
        engine_(executor::EngineOptions{.max_bytes = spec.scratch_bytes}) {
    // A function may change its weights in place; they are its own, and an eviction forgets it.
    if (model && model->bytes > 0) added_ = engine_.add_range({model->base, model->bytes, true});
  }
  const Status& status() const { return added_; }

  Status run(ring::Channel& channel, ring::Clock::time_point deadline) override {
    if (!session_) session_.emplace(channel, engine_);
    return session_->run(deadline, std::chrono::microseconds(0));
  }
  uint64_t scratch_bytes() const override { return engine_.bytes(); }

 private:
  const c10::InferenceMode inference_;
  const executor::Heap::Handle heap_;
  const executor::UseHeap use_;
  executor::Engine engine_;
  std::optional<executor::Session> session_;
  Status added_;
};

class TorchBackend : public Backend {
 public:
  TorchBackend(std::string name, std::unique_ptr<device::Device> device)
      : name_(std::move(name)), models_(std::move(device)) {}

  std::string device() const override { return name_; }
  std::string torch_version() const override { return TORCH_VERSION; }
  MemoryInfo memory() const override { return models_.memory(); }

  Result<std::unique_ptr<SessionWork>> open_session(const SessionSpec& spec) override {
    auto work = std::make_unique<TorchWork>(spec, models_.find(spec.version_id));
    if (!work->status().ok()) return work->status();
    return std::unique_ptr<SessionWork>(std::move(work));
  }
  Answer<std::monostate> map_model(const ModelSpec& spec) override { return models_.map(spec); }
  Answer<uint64_t> unmap_model(const std::string& version_id) override { return models_.unmap(version_id); }

  Answer<std::vector<TapeInfo>> load_tapes(const std::string&, const std::vector<TapeFile>&) override {
    return RpcError{RpcCode::kUnimplemented, "NOT_IMPLEMENTED", "this executor does not replay tapes yet"};
  }
  std::vector<TapeInfo> tapes(const std::string&) const override { return {}; }
  Answer<std::string> execute(const std::string& version_id, const ExecuteRequest&, const LinkCall&) override {
    return RpcError{RpcCode::kFailedPrecondition, "NO_TAPE", "version " + version_id + " has no tape for these inputs"};
  }

 private:
  const std::string name_;
  Models models_;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_torch_backend(const Config& config) {
  device::HostOptions options;
  options.capacity = config.capacity_mib << 20;
  Result<std::unique_ptr<device::Device>> device = device::make_host_device(options);
  if (!device.ok()) return device.status();
  ROUSE_RETURN_IF_ERROR(executor::install_allocator(kSharedBytes));
  at::set_num_threads(static_cast<int>(config.threads));
  return std::unique_ptr<Backend>(std::make_unique<TorchBackend>(config.device, std::move(device).value()));
}

}  // namespace rouse::serve
