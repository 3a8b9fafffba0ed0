#include "replays.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>

#include "rouse/base/fd.h"
#include "rouse/base/text.h"
#include "rouse/executor/allocator.h"
#include "rouse/executor/operation.h"
#include "rouse/tape/player.h"

namespace rouse::serve {

namespace {

constexpr uint64_t kMaxFileBytes = 256 << 20;
constexpr size_t kMaxTapesOfVersion = 4096;

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

Result<std::vector<std::byte>> read_file(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info{};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
    return Status(Code::kInvalid, text("the tape ", path, " cannot be read: ", errno_text()));
  }
  if (!S_ISREG(info.st_mode) || static_cast<uint64_t>(info.st_size) > kMaxFileBytes) {
    return Status(Code::kInvalid, text("the tape ", path, " is no file of at most ", kMaxFileBytes, " bytes"));
  }
  std::vector<std::byte> bytes(static_cast<size_t>(info.st_size));
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t count = ::read(fd.get(), bytes.data() + at, bytes.size() - at);
    if (count <= 0) return Status(Code::kInvalid, text("the tape ", path, " cannot be read: ", errno_text()));
    at += static_cast<size_t>(count);
  }
  return bytes;
}

// A weight as its storage: the memory is the model's.
Result<c10::Storage> weight(const ModelSpec& model, const tape::Place& place) {
  if (place.kind != tape::Class::kWeight) {
    return Status(Code::kInvalid, "it names what only the session that recorded it had");
  }
  if (place.value > model.bytes || place.bytes > model.bytes - place.value) {
    return Status(Code::kInvalid, "it names weights outside of the model's range");
  }
  auto* const data = reinterpret_cast<void*>(model.base + place.value);
  return c10::Storage(c10::Storage::use_byte_size_t(), place.bytes, c10::DataPtr(data, c10::kCPU), nullptr, false);
}

c10::Storage copy_in(Bytes data) {
  c10::DataPtr memory = c10::GetCPUAllocator()->allocate(data.size());
  if (!data.empty()) std::memcpy(memory.get(), data.data(), data.size());
  return c10::Storage(c10::Storage::use_byte_size_t(), data.size(), std::move(memory), nullptr, false);
}

struct Tape {
  std::unique_ptr<tape::Player> player;
  std::vector<size_t> order;  // The n-th input is the order[n]-th by name.
  std::vector<std::string> output_names;
};

// Those with the same inputs: one for each way that its guards came out.
struct Variants {
  std::vector<std::shared_ptr<Tape>> tapes;
  TapeInfo info;
};

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
  explicit Version(uint64_t scratch_bytes)
      : heap(executor::Heap::make(scratch_bytes)), arena(executor::Arena::make()) {}

  executor::Heap::Handle heap;
  executor::Arena::Handle arena;
  executor::Generators generators;
  // Of `by_key` and of what is in it while it is not replayed; a replay holds the device's turn instead.
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<Variants>> by_key;
  size_t tapes = 0;
};

Replays::~Replays() = default;

std::shared_ptr<Replays::Version> Replays::find(const std::string& version_id) const {
  const std::lock_guard lock(mutex_);
  const auto found = versions_.find(version_id);
  return found == versions_.end() ? nullptr : found->second;
}

void Replays::drop(const std::string& version_id) {
  const std::lock_guard lock(mutex_);
  versions_.erase(version_id);
}

std::vector<TapeInfo> Replays::info(const std::string& version_id) const {
  std::vector<TapeInfo> infos;
  const std::shared_ptr<Version> version = find(version_id);
  if (!version) return infos;
  const std::lock_guard lock(version->mutex);
  for (const auto& [key, variants] : version->by_key) infos.push_back(variants->info);
  return infos;
}

namespace {

Result<Tape> prepare(const ModelSpec& model, const TapeFile& file, const ReplayPlace& place) {
  Result<std::vector<std::byte>> bytes = read_file(file.path);
  if (!bytes.ok()) return bytes.status();
  Result<tape::Tape> read = tape::load(bytes.value());
  if (!read.ok()) return read.status();
  tape::Origin here = read.value().origin;
  here.torch_version = place.torch_version;
  here.device = place.device;
  here.layout = model.layout;
  here.model_base = model.base;
  here.model_bytes = model.bytes;
  ROUSE_RETURN_IF_ERROR(tape::fits(read.value().origin, here));
  if (read.value().inputs != file.inputs.size() || read.value().outputs.size() != file.output_names.size()) {
    return Status(Code::kInvalid,
                  text("it has ", read.value().inputs, " inputs and ", read.value().outputs.size(), " outputs; ",
                       file.inputs.size(), " and ", file.output_names.size(), " were named"));
  }
  Tape tape;
  tape.output_names = file.output_names;
  const std::vector<const TapeTensor*> sorted = by_name(file.inputs);
  for (const TapeTensor& input : file.inputs) {
    tape.order.push_back(static_cast<size_t>(std::find(sorted.begin(), sorted.end(), &input) - sorted.begin()));
  }
  Result<std::unique_ptr<tape::Player>> player =
      tape::Player::prepare(std::move(read).value(), [&](const tape::Place& wanted) { return weight(model, wanted); });
  if (!player.ok()) return player.status();
  tape.player = std::move(player).value();
  return tape;
}

executor::TensorSpec spec_of(const tape::Output& output) {
  executor::TensorSpec spec;
  spec.dtype = static_cast<c10::ScalarType>(output.dtype);
  spec.flags = output.flags;
  spec.offset = output.offset;
  spec.sizes.assign(output.sizes.begin(), output.sizes.end());
  spec.strides.assign(output.strides.begin(), output.strides.end());
  return spec;
}

// The tape's outputs as a serialised TensorBatch.
Answer<std::string> write_outputs(const Tape& tape, std::vector<c10::Storage> storages) {
  const std::vector<tape::Output>& outputs = tape.player->tape().outputs;
  std::vector<at::Tensor> kept;
  std::vector<TensorView> views;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const tape::Output& output = outputs[i];
    const auto type = static_cast<c10::ScalarType>(output.dtype);
    const std::string_view datatype = datatype_of(type);
    if (datatype.empty()) {
      return RpcError{RpcCode::kUnimplemented, "NOT_IMPLEMENTED",
                      text("output '", tape.output_names[i], "' is of ", c10::toString(type),
                           ", which no datatype of the inference protocol is")};
    }
    kept.push_back(executor::make_tensor(storages[i], spec_of(output)).resolve_conj().resolve_neg().contiguous());
    const at::Tensor& tensor = kept.back();
    views.push_back({tape.output_names[i], datatype, tensor.sizes().vec(),
                     Bytes(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes())});
  }
  return write_tensors(views);
}

}  // namespace

Answer<std::vector<TapeInfo>> Replays::load(const ModelSpec& model, const std::vector<TapeFile>& files) {
  std::shared_ptr<Version> version;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Version>& slot = versions_[model.version_id];
    if (!slot) slot = std::make_shared<Version>(place_.scratch_bytes);
    version = slot;
  }
  std::vector<std::pair<std::string, Tape>> prepared;
  for (const TapeFile& file : files) {
    Result<Tape> tape = prepare(model, file, place_);
    if (!tape.ok()) return refuse(tape.status(), file.path);
    prepared.emplace_back(key_of(by_name(file.inputs)), std::move(tape).value());
  }
  const std::lock_guard lock(version->mutex);
  if (version->tapes + prepared.size() > kMaxTapesOfVersion) {
    return RpcError{RpcCode::kResourceExhausted, "TOO_MANY_TAPES",
                    text("a version has at most ", kMaxTapesOfVersion, " tapes")};
  }
  for (auto& [key, tape] : prepared) {
    std::shared_ptr<Variants>& slot = version->by_key[key];
    // Replaced, not changed: a replay out of it may be under way.
    auto variants = slot ? std::make_shared<Variants>(*slot) : std::make_shared<Variants>();
    variants->info.signature = key;
    variants->tapes.push_back(std::make_shared<Tape>(std::move(tape)));
    slot = std::move(variants);
    ++version->tapes;
  }
  std::vector<TapeInfo> infos;
  for (const auto& [key, variants] : version->by_key) infos.push_back(variants->info);
  return infos;
}

Answer<std::string> Replays::execute(const std::string& version_id, const ExecuteRequest& request) {
  const std::vector<const TensorView*> sorted = by_name(request.inputs);
  const std::shared_ptr<Version> version = find(version_id);
  std::shared_ptr<Variants> variants;
  if (version) {
    const std::lock_guard lock(version->mutex);
    const auto found = version->by_key.find(key_of(sorted));
    if (found != version->by_key.end()) variants = found->second;
  }
  if (!variants) {
    return RpcError{RpcCode::kFailedPrecondition, "NO_TAPE", "version " + version_id + " has no tape for these inputs"};
  }
  const c10::InferenceMode inference;
  const executor::UseHeap use(*version->heap);
  uint64_t missed = 0;
  for (const std::shared_ptr<Tape>& tape : variants->tapes) {
    std::vector<c10::Storage> inputs;
    for (const size_t position : tape->order) inputs.push_back(copy_in(sorted[position]->data));
    Result<tape::Replayed> replayed =
        tape->player->run(inputs, {.generators = version->generators, .arena = version->arena.get()});
    if (!replayed.ok()) {
      return RpcError{RpcCode::kInternal, "REPLAY_FAILED", replayed.status().describe()};
    }
    missed += replayed.value().missed ? 1 : 0;
    if (replayed.value().missed) continue;
    const std::lock_guard lock(version->mutex);
    variants->info.guards_missed += missed;
    ++variants->info.replays;
    return write_outputs(*tape, std::move(replayed.value().outputs));
  }
  const std::lock_guard lock(version->mutex);
  variants->info.guards_missed += missed;
  return RpcError{RpcCode::kFailedPrecondition, "GUARD_MISSED",
                  "the inputs' values lead another way than in any tape of version " + version_id};
}

}  // namespace rouse::serve
