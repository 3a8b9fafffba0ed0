#include "models.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>

#include "rouse/base/fd.h"
#include "rouse/base/text.h"

namespace rouse::serve {

namespace {

// Physical memory is taken in chunks, so that a large model does not need one piece.
constexpr uint64_t kChunkBytes = 64 << 20;
constexpr auto kCopyPatience = std::chrono::minutes(10);

// An image in host memory, read-only.
class Image {
 public:
  static Result<std::unique_ptr<Image>> open(const std::string& path, uint64_t bytes) {
    const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info{};
    if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
      return Status(Code::kNotFound, text("the image ", path, " cannot be read: ", errno_text()));
    }
    if (static_cast<uint64_t>(info.st_size) < bytes) {
      return Status(Code::kMismatch, text("the image ", path, " has ", info.st_size, " bytes instead of ", bytes));
    }
    void* const data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) return Status(Code::kFailed, text("the image ", path, ": mmap: ", errno_text()));
    return std::unique_ptr<Image>(new Image(data, bytes));
  }
  ~Image() { ::munmap(data_, bytes_); }
  const std::byte* data() const { return static_cast<const std::byte*>(data_); }

 private:
  Image(void* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  void* data_;
  uint64_t bytes_;
};

RpcError answer(const Status& status) {
  RpcError error = to_rpc(status);
  if (status.code() == Code::kExhausted) error.reason = "DEVICE_MEMORY_FULL";
  if (status.code() == Code::kNotFound) error.reason = "IMAGE_NOT_FOUND";
  if (status.code() == Code::kInvalid) error.reason = "BAD_RANGE";
  if (status.code() == Code::kMismatch) {
    error.reason = "RANGE_TAKEN";
    error.code = RpcCode::kFailedPrecondition;
  }
  return error;
}

}  // namespace

Models::~Models() {
  // The process ends, and the kernel takes everything; errors have nobody to go to.
  for (auto& [id, model] : models_) (void)give_back(model).ok();
}

Status Models::load(Model& model) {
  const ModelSpec& spec = model.spec;
  if (spec.bytes == 0) return {};
  const uint64_t granularity = device_->granularity();
  if (spec.base < device::kModelBase || spec.base % granularity != 0) {
    return Status(Code::kInvalid, text("a range at ", Hex{spec.base}, "; models lie from ", Hex{device::kModelBase},
                                       " on, at multiples of ", granularity));
  }
  const uint64_t range = (spec.bytes + granularity - 1) / granularity * granularity;
  ROUSE_RETURN_IF_ERROR(device_->reserve(spec.base, range));
  model.range_bytes = range;
  for (uint64_t offset = 0; offset < range; offset += kChunkBytes) {
    Result<device::ChunkId> chunk = device_->create(std::min(kChunkBytes, range - offset));
    if (!chunk.ok()) return chunk.status();
    model.chunks.push_back(chunk.value());
    ROUSE_RETURN_IF_ERROR(device_->map(chunk.value(), spec.base + offset));
  }
  Result<std::unique_ptr<device::Stream>> stream = device_->make_stream();
  if (!stream.ok()) return stream.status();
  if (spec.image_path.empty()) {
    ROUSE_RETURN_IF_ERROR(stream.value()->zero(spec.base, range));
  } else {
    Result<std::unique_ptr<Image>> image = Image::open(spec.image_path, spec.bytes);
    if (!image.ok()) return image.status();
    ROUSE_RETURN_IF_ERROR(stream.value()->copy_in(spec.base, image.value()->data(), spec.bytes));
    // What lies behind the image was another model's.
    if (range > spec.bytes) ROUSE_RETURN_IF_ERROR(stream.value()->zero(spec.base + spec.bytes, range - spec.bytes));
    Result<std::unique_ptr<device::Event>> copied = stream.value()->record();
    if (!copied.ok()) return copied.status();
    return copied.value()->wait(std::chrono::steady_clock::now() + kCopyPatience);
  }
  Result<std::unique_ptr<device::Event>> cleared = stream.value()->record();
  if (!cleared.ok()) return cleared.status();
  return cleared.value()->wait(std::chrono::steady_clock::now() + kCopyPatience);
}

Status Models::give_back(Model& model) {
  Status first;
  const auto keep = [&](Status status) {
    if (first.ok() && !status.ok()) first = std::move(status);
  };
  for (const device::ChunkId chunk : model.chunks) {
    // The last one may not have come to be mapped.
    const Status unmapped = device_->unmap(chunk);
    if (unmapped.code() != Code::kNotFound && unmapped.code() != Code::kRefused) keep(unmapped);
    keep(device_->destroy(chunk));
  }
  model.chunks.clear();
  if (model.range_bytes != 0) keep(device_->release(model.spec.base));
  model.range_bytes = 0;
  return first;
}

Answer<std::monostate> Models::map(const ModelSpec& spec) {
  Model model{spec, 0, {}};
  const Status loaded = load(model);
  if (!loaded.ok()) {
    const Status returned = give_back(model);
    if (returned.ok()) return answer(loaded);
    return answer(Status(loaded.code(), loaded.text() + "; and giving it back failed: " + returned.text()));
  }
  const std::lock_guard lock(mutex_);
  models_[spec.version_id] = std::move(model);
  return std::monostate();
}

Answer<uint64_t> Models::unmap(const std::string& version_id) {
  Model model;
  {
    const std::lock_guard lock(mutex_);
    const auto found = models_.find(version_id);
    if (found == models_.end()) return uint64_t{0};
    model = std::move(found->second);
    models_.erase(found);
  }
  const uint64_t bytes = model.range_bytes;
  const Status returned = give_back(model);
  if (!returned.ok()) return answer(returned);
  return bytes;
}

std::optional<ModelSpec> Models::find(const std::string& version_id) const {
  const std::lock_guard lock(mutex_);
  const auto found = models_.find(version_id);
  return found == models_.end() ? std::nullopt : std::optional(found->second.spec);
}

MemoryInfo Models::memory() const {
  const device::Usage usage = device_->usage();
  return {usage.capacity, usage.mapped, usage.free};
}

}  // namespace rouse::serve
