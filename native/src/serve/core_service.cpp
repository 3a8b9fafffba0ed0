#include "rouse/serve/core_service.h"

#include <dirent.h>
#include <unistd.h>

#include <utility>

#include "core_messages.h"
#include "rouse/serve/log.h"

namespace rouse::serve {

namespace {

constexpr const char* kCore = "/rouse.device.v1.CoreService/";
constexpr size_t kMaxControlWaiting = 256;

uint64_t open_descriptors() {
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  uint64_t count = 0;
  while (const dirent* const entry = ::readdir(folder)) count += entry->d_name[0] != '.' ? 1 : 0;
  ::closedir(folder);
  return count - 1;  // The folder's own.
}

RpcError invalid(const char* reason, const Status& status) {
  RpcError error = to_rpc(status);
  if (status.code() == Code::kInvalid) error.reason = reason;
  return error;
}

RpcError not_mapped(const std::string& version_id) {
  return {RpcCode::kNotFound, "MODEL_NOT_MAPPED", "version " + version_id + " is not mapped on this device"};
}

}  // namespace

CoreService::CoreService(EventLoop& loop, LinkServer& server, Backend& backend, const Config& config)
    : loop_(loop),
      server_(server),
      backend_(backend),
      config_(config),
      turns_(std::chrono::microseconds(config.quantum_us)),
      control_(kMaxControlWaiting),
      tapes_(config.max_calls) {
  const auto add = [&](const std::string& method, void (CoreService::*handler)(const Call&, Bytes)) {
    server.add(method, [this, handler](Call call, Bytes request) { (this->*handler)(call, request); });
  };
  add(kCore + std::string("Describe"), &CoreService::describe);
  add(kCore + std::string("MapModel"), &CoreService::map_model);
  add(kCore + std::string("UnmapModel"), &CoreService::unmap_model);
  add(kCore + std::string("OpenSession"), &CoreService::open_session);
  add(kCore + std::string("CloseSession"), &CoreService::close_session);
  add(kCore + std::string("LoadTapes"), &CoreService::load_tapes);
  add(kCore + std::string("SaveTapes"), &CoreService::save_tapes);
  add("/rouse.device.v1.ExecutorService/Execute", &CoreService::execute);
}

CoreService::~CoreService() = default;

// Hands blocking work to the control thread; answers the call where too much waits.
bool CoreService::control(const Call& call, std::function<void()> task) {
  if (control_.submit(std::move(task))) return true;
  call->fail({RpcCode::kResourceExhausted, "TOO_MANY_CALLS", "the executor has too much to do", {}, 0.1});
  return false;
}

void CoreService::describe(const Call& call, Bytes request) {
  const Result<bool> working_only = read_describe(request);
  if (!working_only.ok()) return call->fail(invalid("BAD_REQUEST", working_only.status()));
  if (working_only.value()) return describe_working(call);
  const MemoryInfo memory = backend_.memory();
  ProtoWriter out;
  out.text(1, backend_.device()).varint(2, static_cast<uint64_t>(::getpid())).varint(3, kProtocolVersion);
  out.text(4, backend_.torch_version()).varint(5, stopping_ ? 1 : 0);
  uint64_t scratch = 0;
  uint64_t rings = 0;
  for (const auto& [id, session] : sessions_) {
    const SessionInfo info = session->info();
    scratch += info.scratch_bytes;
    rings += info.ring_bytes;
    out.element(7, write_session(info));
  }
  ProtoWriter bytes;
  bytes.varint(1, memory.capacity_bytes).varint(2, memory.mapped_bytes).varint(3, memory.free_bytes);
  bytes.varint(4, scratch).varint(5, rings).varint(6, memory.group_bytes);
  out.element(6, bytes.out());
  for (const auto& [id, model] : models_) {
    if (!model.mapped) continue;
    ProtoWriter one;
    one.text(1, id).text(2, model.attachment_id).varint(3, model.base).varint(4, model.bytes);
    for (const TapeInfo& tape : backend_.tapes(id)) one.element(5, write_tape(tape));
    const SwapInfo swap = backend_.swap(id);
    one.varint(6, swap.resident_bytes).text(7, swap.failure);
    const WorkingInfo working = backend_.working(id);
    one.varint(8, working.held_bytes).varint(9, working.most_bytes);
    out.element(8, one.out());
  }
  out.varint(9, open_descriptors()).varint(10, server_.calls());
  call->reply(out.out());
}

void CoreService::describe_working(const Call& call) {
  ProtoWriter out;
  for (const auto& [id, model] : models_) {
    if (!model.mapped) continue;
    const WorkingInfo working = backend_.working(id);
    out.element(8, ProtoWriter().text(1, id).varint(8, working.held_bytes).varint(9, working.most_bytes).out());
  }
  call->reply(out.out());
}

// ---- Models -----------------------------------------------------------------------------------

void CoreService::map_model(const Call& call, Bytes request) {
  Result<ModelSpec> read = read_map_model(request);
  if (!read.ok()) return call->fail(invalid("BAD_RANGE", read.status()));
  const ModelSpec& spec = read.value();
  if (models_.contains(spec.version_id) || attachments_.contains(spec.attachment_id)) {
    return call->fail({RpcCode::kAlreadyExists, "MODEL_MAPPED",
                       "version " + spec.version_id + " or attachment " + spec.attachment_id + " is mapped already"});
  }
  if (models_.size() >= config_.max_models) {
    return call->fail({RpcCode::kResourceExhausted, "TOO_MANY_MODELS",
                       std::to_string(config_.max_models) + " models are mapped; unmap one first"});
  }
  if (!control(call, [this, call, spec] {
        Answer<std::monostate> answer = backend_.map_model(spec);
        // The state changes before the answer, or the caller's next call could come too early.
        loop_.post([this, call, spec, answer = std::move(answer)] {
          if (const auto* error = std::get_if<RpcError>(&answer)) {
            models_.erase(spec.version_id);
            attachments_.erase(spec.attachment_id);
            return call->fail(*error);
          }
          models_[spec.version_id].mapped = true;
          call->reply({});
        });
      })) {
    return;
  }
  models_[spec.version_id] = Model{spec.attachment_id, spec.base, spec.bytes, false};
  attachments_[spec.attachment_id] = spec.version_id;
}

void CoreService::unmap_model(const Call& call, Bytes request) {
  Result<std::string> id = read_id(request, "UnmapModelRequest");
  if (!id.ok()) return call->fail(invalid("BAD_RANGE", id.status()));
  const auto model = models_.find(id.value());
  if (model == models_.end()) return call->reply({});
  if (!model->second.mapped) {
    return call->fail({RpcCode::kFailedPrecondition,
                       "MODEL_BUSY",
                       "version " + id.value() + " is being mapped or unmapped; try again",
                       {},
                       0.05});
  }
  // From here on nothing new begins on it, and what waits for its weights waits no longer.
  model->second.mapped = false;
  backend_.cancel_swap(id.value());
  attachments_.erase(model->second.attachment_id);
  for (const auto& [name, session] : sessions_) {
    if (session->options().spec.version_id == id.value()) session->end("its version is unmapped");
  }
  waiting_.push_back({call, {}, id.value()});
  after_sessions();
}

void CoreService::unmap_now(const Call& call, const std::string& version_id) {
  const bool queued = control(call, [this, call, version_id] {
    Answer<uint64_t> answer = uint64_t{0};
    {
      const Turns::Turn turn(turns_);  // What executes on it ends first.
      answer = backend_.unmap_model(version_id);
    }
    loop_.post([this, call, version_id, answer = std::move(answer)] {
      if (const auto* error = std::get_if<RpcError>(&answer)) {
        models_[version_id].mapped = true;
        attachments_[models_[version_id].attachment_id] = version_id;
        return call->fail(*error);
      }
      models_.erase(version_id);
      call->reply(ProtoWriter().varint(1, std::get<uint64_t>(answer)).out());
    });
  });
  if (queued) return;
  models_[version_id].mapped = true;
  attachments_[models_[version_id].attachment_id] = version_id;
}

void CoreService::load_tapes(const Call& call, Bytes request) {
  Result<LoadTapesRequest> read = read_load_tapes(request);
  if (!read.ok()) return call->fail(invalid("BAD_TAPE", read.status()));
  const auto model = models_.find(read.value().version_id);
  if (model == models_.end() || !model->second.mapped) return call->fail(not_mapped(read.value().version_id));
  // On the thread that replays: what PyTorch prepares at first calls, it keeps by thread.
  const bool queued = tapes_.submit([this, call, wanted = read.value()] {
    Answer<std::vector<TapeInfo>> answer = std::vector<TapeInfo>();
    {
      const Turns::Turn turn(turns_);
      answer = backend_.load_tapes(wanted.version_id, wanted.files);
    }
    if (const auto* error = std::get_if<RpcError>(&answer)) return call->fail(*error);
    ProtoWriter out;
    for (const TapeInfo& tape : std::get<std::vector<TapeInfo>>(answer)) out.element(1, write_tape(tape));
    call->reply(out.out());
  });
  if (!queued) too_busy(call);
}

// ---- Sessions ---------------------------------------------------------------------------------

void CoreService::open_session(const Call& call, Bytes request) {
  Result<SessionOptions> read = read_open_session(request, config_);
  if (!read.ok()) return call->fail(invalid("BAD_SESSION", read.status()));
  const SessionSpec& spec = read.value().spec;
  if (sessions_.contains(spec.session_id)) {
    return call->fail({RpcCode::kAlreadyExists, "SESSION_EXISTS", "session " + spec.session_id + " is open already"});
  }
  if (sessions_.size() >= config_.max_sessions) {
    return call->fail({RpcCode::kResourceExhausted, "TOO_MANY_SESSIONS",
                       std::to_string(config_.max_sessions) + " sessions are open; close one first"});
  }
  if (!spec.version_id.empty()) {
    const auto model = models_.find(spec.version_id);
    if (model == models_.end() || !model->second.mapped) return call->fail(not_mapped(spec.version_id));
  }
  const std::string id = spec.session_id;
  Result<std::shared_ptr<Session>> session = Session::open(
      loop_, turns_, backend_, std::move(read).value(), [this, id](const std::string& why) { session_ended(id, why); });
  if (!session.ok()) return call->fail(invalid("BAD_SESSION", session.status()));
  sessions_[id] = std::move(session).value();
  call->reply({});
}

void CoreService::close_session(const Call& call, Bytes request) {
  Result<std::string> id = read_id(request, "CloseSessionRequest");
  if (!id.ok()) return call->fail(invalid("BAD_SESSION", id.status()));
  const auto session = sessions_.find(id.value());
  if (session == sessions_.end()) return call->reply({});
  waiting_.push_back({call, id.value(), {}});
  session->second->end("it was closed");
}

void CoreService::session_ended(const std::string& id, const std::string& why) {
  log_info("session " + id + " has ended: " + why);
  sessions_.erase(id);
  after_sessions();
}

bool CoreService::has_sessions(const std::string& version_id) const {
  for (const auto& [id, session] : sessions_) {
    if (session->options().spec.version_id == version_id) return true;
  }
  return false;
}

// Goes on with those who waited for sessions that have ended now.
void CoreService::after_sessions() {
  std::vector<Waiting> still;
  for (Waiting& waiting : std::exchange(waiting_, {})) {
    if (!waiting.session_id.empty()) {
      if (sessions_.contains(waiting.session_id)) {
        still.push_back(std::move(waiting));
      } else {
        waiting.call->reply({});
      }
    } else if (has_sessions(waiting.version_id)) {
      still.push_back(std::move(waiting));
    } else {
      unmap_now(waiting.call, waiting.version_id);
    }
  }
  waiting_.insert(waiting_.end(), still.begin(), still.end());
  if (stopping_ && sessions_.empty() && stopped_) std::exchange(stopped_, nullptr)();
}

void CoreService::stop(std::function<void()> ended) {
  stopping_ = true;
  stopped_ = std::move(ended);
  for (const auto& [id, model] : models_) backend_.cancel_swap(id);
  for (const auto& [id, session] : sessions_) session->end("the executor stops");
  after_sessions();
}

void CoreService::save_tapes(const Call& call, Bytes request) {
  Result<SaveTapesRequest> read = read_save_tapes(request);
  if (!read.ok()) return call->fail(invalid("BAD_SESSION", read.status()));
  const auto session = sessions_.find(read.value().session_id);
  if (session == sessions_.end()) {
    return call->fail({RpcCode::kNotFound, "NO_SESSION", "there is no session " + read.value().session_id});
  }
  control(call, [this, call, session = session->second, folder = read.value().folder] {
    Answer<RecordedTapes> answer = RecordedTapes();
    {
      const Turns::Turn turn(turns_);
      if (session->work() != nullptr) answer = session->work()->save_tapes(folder);
    }
    if (const auto* error = std::get_if<RpcError>(&answer)) return call->fail(*error);
    call->reply(write_recorded(std::get<RecordedTapes>(answer)));
  });
}

// ---- Tapes ------------------------------------------------------------------------------------

void CoreService::execute(const Call& call, Bytes request) {
  auto bytes = std::make_shared<std::string>(as_text(request));
  Result<ExecuteRequest> read = read_execute(as_bytes(*bytes));
  if (!read.ok()) return call->fail(invalid("BAD_INPUT", read.status()));
  const std::string_view lease = read.value().lease_id;
  const auto attachment = attachments_.find(std::string(lease.substr(0, lease.find('/'))));
  if (attachment == attachments_.end() || lease.find('/') == std::string_view::npos ||
      !models_.at(attachment->second).mapped) {
    return call->fail({RpcCode::kFailedPrecondition, "STALE_LEASE",
                       "the lease is of no attachment that is mapped here; acquire a new one"});
  }
  // The inputs are views into `bytes`, which the task keeps.
  const bool queued =
      tapes_.submit([this, call, bytes, version = attachment->second, wanted = std::move(read).value()] {
        const Turns::Turn turn(turns_);
        if (call->ended()) return;
        const Answer<Executed> answer = backend_.execute(version, wanted, *call);
        if (const auto* error = std::get_if<RpcError>(&answer)) return call->fail(*error);
        const auto& done = std::get<Executed>(answer);
        ProtoWriter out;
        out.reserve(done.outputs.size() + 64);
        out.text(1, done.outputs).number(2, done.device_ms).number(3, done.input_ms).number(4, done.output_ms);
        call->reply(out.out());
      });
  if (!queued) too_busy(call);
}

void CoreService::too_busy(const Call& call) const {
  call->fail({RpcCode::kResourceExhausted,
              "TOO_MANY_CALLS",
              std::to_string(config_.max_calls) + " requests wait for the device",
              {},
              0.1});
}

}  // namespace rouse::serve
