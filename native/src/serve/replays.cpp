#include "replays.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>

#include "arrival.h"
#include "rouse/base/file.h"
#include "rouse/base/text.h"
#include "rouse/executor/allocator.h"
#include "rouse/executor/operation.h"
#include "rouse/tape/guarded.h"
#include "rouse/tape/shelf.h"

namespace rouse::serve {

namespace {

constexpr std::array<std::pair<c10::ScalarType, std::string_view>, 13> kDatatypes{{
    {c10::ScalarType::Bool, "BOOL"},
    {c10::ScalarType::Byte, "UINT8"},
    {c10::ScalarType::UInt16, "UINT16"},
    {c10::ScalarType::UInt32, "UINT32"},
    {c10::ScalarType::UInt64, "UINT64"},
    {c10::ScalarType::Char, "INT8"},
    {c10::ScalarType::Short, "INT16"},
    {c10::ScalarType::Int, "INT32"},
    {c10::ScalarType::Long, "INT64"},
    {c10::ScalarType::Half, "FP16"},
    {c10::ScalarType::BFloat16, "BF16"},
    {c10::ScalarType::Float, "FP32"},
    {c10::ScalarType::Double, "FP64"},
}};

std::string_view datatype_of(c10::ScalarType type) {
  const auto* const found =
      std::find_if(kDatatypes.begin(), kDatatypes.end(), [&](const auto& entry) { return entry.first == type; });
  return found == kDatatypes.end() ? std::string_view() : found->second;
}

// What a request asks for, apart from values: its inputs by name, in the names' order.
template <typename Tensor>
std::string key_of(const std::vector<const Tensor*>& sorted) {
  std::string key;
  for (const Tensor* const tensor : sorted) {
    key.append(tensor->name).append(":").append(tensor->datatype);
    for (const int64_t size : tensor->shape) key.append(",").append(std::to_string(size));
    key.push_back(';');
  }
  return key;
}

template <typename Tensor>
std::vector<const Tensor*> by_name(const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> sorted;
  for (const Tensor& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const Tensor* a, const Tensor* b) { return a->name < b->name; });
  return sorted;
}

double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

// What answers one kind of request.
struct Kind {
  tape::Signature signature{};
  std::vector<size_t> order;  // The n-th input of its tapes is the order[n]-th by name.
  std::vector<std::string> output_names;
  std::shared_ptr<ReplayCounts> counts;
};

// What runs out of memory, or fails otherwise, is an answer and not the end of the process.
template <typename T, typename Body>
Answer<T> guarded(const char* what, const char* reason, const Body& body) {
  Answer<T> answer;
  const Status done = tape::guarded(what, [&] {
    answer = body();
    return Status();
  });
  if (done.ok()) return answer;
  return RpcError{RpcCode::kInternal, reason, done.text()};
}

RpcError refuse(const Status& status, const std::string& path) {
  RpcError error = to_rpc(status);
  error.message = path + ": " + error.message;
  const bool elsewhere = status.code() == Code::kMismatch || status.code() == Code::kUnsupported;
  error.reason = elsewhere ? "TAPE_MISMATCH" : "BAD_TAPE";
  error.code = elsewhere ? RpcCode::kFailedPrecondition : RpcCode::kInvalidArgument;
  return error;
}

}  // namespace

// One version's tapes and the memory that they are replayed in, which no other version ever sees.
struct Replays::Version {
  Version(tape::Origin here, const MappedModel& model, const ReplayPlace& place)
      : working(model.working),
        heap(executor::Heap::make(std::make_shared<executor::Account>(
            model.spec.working_bytes != 0 ? model.spec.working_bytes : place.scratch_bytes, working))),
        arrival(model.residency),
        shelf(std::move(here), &arrival, place.compute) {}

  const std::shared_ptr<executor::Account> working;
  executor::Heap::Handle heap;
  Arrival arrival;
  tape::Shelf shelf;
  std::unordered_map<std::string, Kind> kinds;
};

Replays::Replays(ReplayPlace place) : place_(std::move(place)) {}

Replays::~Replays() = default;

Replays::Version* Replays::find(const std::string& version_id) {
  const auto found = versions_.find(version_id);
  return found == versions_.end() ? nullptr : found->second.get();
}

void Replays::drop(const std::string& version_id) {
  versions_.erase(version_id);
  const std::lock_guard lock(mutex_);
  counts_.erase(version_id);
}

std::vector<TapeInfo> Replays::info(const std::string& version_id) const {
  std::vector<TapeInfo> infos;
  const std::lock_guard lock(mutex_);
  const auto found = counts_.find(version_id);
  if (found == counts_.end()) return infos;
  for (const auto& [key, counts] : found->second) {
    infos.push_back({key, counts->replays.load(), counts->guards_missed.load()});
  }
  return infos;
}

Answer<std::vector<TapeInfo>> Replays::load(const MappedModel& mapped, const std::vector<TapeFile>& files) {
  return guarded<std::vector<TapeInfo>>("loading a tape", "LOAD_FAILED", [&] { return load_all(mapped, files); });
}

Answer<std::vector<TapeInfo>> Replays::load_all(const MappedModel& mapped, const std::vector<TapeFile>& files) {
  const ModelSpec& model = mapped.spec;
  std::unique_ptr<Version>& version = versions_[model.version_id];
  if (!version) {
    tape::Origin here;
    here.torch_version = place_.torch_version;
    here.device = place_.device;
    here.layout = model.layout;
    here.model_base = model.base;
    here.model_bytes = model.bytes;
    version = std::make_unique<Version>(std::move(here), mapped, place_);
  }
  const executor::UseHeap use(*version->heap);
  const c10::DeviceGuard on(place_.compute.device());
  const tape::Player::Find weights = tape::weights_at(model.base, model.bytes, place_.compute);
  for (const TapeFile& file : files) {
    Result<std::vector<std::byte>> bytes = read_file(file.path, kMaxTapeBytes);
    if (!bytes.ok()) return refuse(bytes.status(), file.path);
    Result<tape::Signature> signature = version->shelf.load(bytes.value(), weights);
    if (!signature.ok()) return refuse(signature.status(), file.path);
    Kind kind{signature.value(), {}, file.output_names, nullptr};
    const std::vector<const TapeTensor*> sorted = by_name(file.inputs);
    for (const TapeTensor& input : file.inputs) {
      kind.order.push_back(static_cast<size_t>(std::find(sorted.begin(), sorted.end(), &input) - sorted.begin()));
    }
    const std::string key = key_of(sorted);
    {
      const std::lock_guard lock(mutex_);
      std::shared_ptr<ReplayCounts>& counts = counts_[model.version_id][key];
      if (!counts) counts = std::make_shared<ReplayCounts>();
      kind.counts = counts;
    }
    version->kinds[key] = std::move(kind);
  }
  return info(model.version_id);
}

namespace {

executor::TensorSpec spec_of(const tape::Output& output) {
  executor::TensorSpec spec;
  spec.dtype = static_cast<c10::ScalarType>(output.dtype);
  spec.flags = output.flags;
  spec.offset = output.offset;
  spec.sizes.assign(output.sizes.begin(), output.sizes.end());
  spec.strides.assign(output.strides.begin(), output.strides.end());
  return spec;
}

// The outputs that a request wants, or all, as a serialised TensorBatch.
Answer<std::string> write_outputs(const Kind& kind, const tape::Played& played,
                                  const std::vector<std::string_view>& wanted) {
  const std::vector<tape::Output>& outputs = played.tape->outputs;
  if (outputs.size() != kind.output_names.size()) {
    return RpcError{RpcCode::kInternal, "BAD_TAPE",
                    text("a tape has ", outputs.size(), " outputs, and ", kind.output_names.size(),
                         " were named when it was loaded")};
  }
  std::vector<size_t> chosen;
  for (const std::string_view name : wanted) {
    const auto found = std::find(kind.output_names.begin(), kind.output_names.end(), name);
    if (found == kind.output_names.end()) {
      return RpcError{RpcCode::kFailedPrecondition, "NO_TAPE", text("no tape gives an output '", name, "'")};
    }
    chosen.push_back(static_cast<size_t>(found - kind.output_names.begin()));
  }
  for (size_t i = 0; wanted.empty() && i < outputs.size(); ++i) chosen.push_back(i);
  std::vector<at::Tensor> kept;
  std::vector<TensorView> views;
  for (const size_t i : chosen) {
    const auto type = static_cast<c10::ScalarType>(outputs[i].dtype);
    const std::string_view datatype = datatype_of(type);
    if (datatype.empty()) {
      return RpcError{RpcCode::kUnimplemented, "NOT_IMPLEMENTED",
                      text("output '", kind.output_names[i], "' is of ", c10::toString(type),
                           ", which no datatype of the inference protocol is")};
    }
    const at::Tensor tensor = executor::make_tensor(played.outputs[i], spec_of(outputs[i]));
    kept.push_back(tensor.resolve_conj().resolve_neg().contiguous().cpu());
    views.push_back({kind.output_names[i], datatype, kept.back().sizes().vec(),
                     Bytes(static_cast<const std::byte*>(kept.back().const_data_ptr()), kept.back().nbytes())});
  }
  return write_tensors(views);
}

}  // namespace

Answer<Executed> Replays::execute(const std::string& version_id, const ExecuteRequest& request,
                                  transfer::Deadline deadline) {
  return guarded<Executed>("a replay", "REPLAY_FAILED", [&] { return replay(version_id, request, deadline); });
}

Answer<Executed> Replays::replay(const std::string& version_id, const ExecuteRequest& request,
                                 transfer::Deadline deadline) {
  const RpcError none{RpcCode::kFailedPrecondition, "NO_TAPE",
                      "version " + version_id + " has no tape for these inputs"};
  Version* const version = find(version_id);
  if (version == nullptr) return none;
  const std::vector<const TensorView*> sorted = by_name(request.inputs);
  const auto kind = version->kinds.find(key_of(sorted));
  if (kind == version->kinds.end()) return none;
  const auto started = Clock::now();
  const c10::InferenceMode inference;
  const executor::UseHeap use(*version->heap);
  const c10::DeviceGuard on(place_.compute.device());
  std::vector<c10::Storage> inputs;
  for (const size_t position : kind->second.order) {
    const Bytes data = sorted[position]->data;
    inputs.push_back(place_.compute.make_storage(data.size()));
    const Status written = place_.compute.write(inputs.back(), 0, data);
    if (!written.ok()) return RpcError{RpcCode::kInternal, "REPLAY_FAILED", written.describe()};
  }
  const auto copied = Clock::now();
  version->arrival.limit(deadline);
  Result<tape::Played> played = version->shelf.replay(kind->second.signature, inputs);
  // What failed beside the host, too; and the time until then is the device's.
  const Status done = place_.compute.synchronize();
  if (!place_.compute.host()) version->working->reached(place_.compute.most_bytes());
  if (played.ok() && !done.ok()) played = done;
  if (!played.ok()) {
    if (std::optional<RpcError> swap = version->arrival.error(played.status())) return *std::move(swap);
    return RpcError{RpcCode::kInternal, "REPLAY_FAILED", played.status().describe()};
  }
  if (played.value().outcome == tape::Outcome::kDone) {
    ++kind->second.counts->replays;
    const auto replayed = Clock::now();
    Answer<std::string> outputs = write_outputs(kind->second, played.value(), request.output_names);
    if (auto* const error = std::get_if<RpcError>(&outputs)) return std::move(*error);
    return Executed{std::get<std::string>(std::move(outputs)), milliseconds(replayed - copied),
                    milliseconds(copied - started), milliseconds(Clock::now() - replayed)};
  }
  ++kind->second.counts->guards_missed;
  return RpcError{RpcCode::kFailedPrecondition, "GUARD_MISSED",
                  "the inputs' values lead another way than in any tape of version " + version_id};
}

}  // namespace rouse::serve
