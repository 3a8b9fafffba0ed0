#include "models.h"

#include <algorithm>
#include <array>
#include <vector>

#include "rouse/base/file.h"
#include "rouse/base/text.h"
#include "rouse/serve/log.h"
#include "rouse/tape/order.h"
#include "rouse/transfer/elbow.h"

namespace rouse::serve {

namespace {

using Clock = std::chrono::steady_clock;

// What the throughput curve is measured with: a few tens of milliseconds on the machines that we know.
constexpr uint64_t kCurveBytes = 8 << 20;
constexpr int kCurveRounds = 3;
constexpr std::array<uint64_t, 7> kGroupSizes{64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20};

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

// The group size of this device. Its memory is used for the moment of the measurement and kept for the first model.
Result<uint64_t> measure_groups(device::Device& device, memory::Space& space) {
  const uint64_t bytes = std::min(kCurveBytes, device.usage().capacity / device.granularity() * device.granularity());
  ROUSE_RETURN_IF_ERROR(space.reserve(device::kModelBase, bytes, memory::Region::kScratch));
  Result<std::vector<transfer::Point>> curve = std::vector<transfer::Point>();
  Status status = space.map(device::kModelBase);
  if (status.ok()) {
    const std::vector<char> from(bytes, 1);
    curve = transfer::measure_curve(device, device::kModelBase, from.data(), bytes, kGroupSizes, kCurveRounds);
    if (!curve.ok()) status = curve.status();
  }
  const Status released = space.release(device::kModelBase);
  ROUSE_RETURN_IF_ERROR(status);
  ROUSE_RETURN_IF_ERROR(released);
  return transfer::elbow(curve.value());
}

struct Order {
  std::vector<transfer::Extent> first_uses, tables;
};

// What the caller says; else what a tape of the model uses first. A tape that does not tell costs time, and no more.
Order order_of(const ModelSpec& spec) {
  Order order;
  for (const ModelGroup& group : spec.groups) order.first_uses.push_back({group.offset, group.bytes});
  if (!order.first_uses.empty() || spec.order_path.empty()) return order;
  const auto bytes = read_file(spec.order_path, kMaxTapeBytes);
  const auto tape = bytes.ok() ? tape::load(bytes.value()) : Result<tape::Tape>(bytes.status());
  if (!tape.ok()) {
    log_warning("version " + spec.version_id + " is copied in its file's order: " + tape.status().text());
    return order;
  }
  const tape::Origin& made = tape.value().origin;
  if (made.layout != spec.layout || made.model_base != spec.base || made.model_bytes != spec.bytes) {
    log_warning("version " + spec.version_id + " is copied in its file's order: " + spec.order_path +
                " was recorded with another layout");
    return order;
  }
  const tape::WeightOrder uses = tape::weight_order(tape.value());
  for (const tape::Part& part : uses.first_uses) order.first_uses.push_back({part.offset, part.bytes});
  for (const tape::Part& part : uses.tables) order.tables.push_back({part.offset, part.bytes});
  return order;
}

}  // namespace

Models::Models(std::unique_ptr<device::Device> device, const ModelsOptions& options)
    : options_(options), device_(std::move(device)), space_(*device_), group_bytes_(options.group_bytes) {}

Result<std::unique_ptr<Models>> Models::make(std::unique_ptr<device::Device> device, const ModelsOptions& options) {
  std::unique_ptr<Models> models(new Models(std::move(device), options));
  if (models->group_bytes_ == 0) {
    Result<uint64_t> measured = measure_groups(*models->device_, models->space_);
    if (!measured.ok()) return measured.status();
    models->group_bytes_ = measured.value();
  }
  Result<std::unique_ptr<transfer::Link>> link = transfer::Link::make(*models->device_, options.link);
  if (!link.ok()) return link.status();
  models->link_ = std::move(link).value();
  return models;
}

// The link cancels what is under way and waits for it; then the space gives its ranges back.
Models::~Models() = default;

Status Models::reserve(const ModelSpec& spec) {
  const uint64_t granularity = device_->granularity();
  if (spec.base < device::kModelBase || spec.base % granularity != 0) {
    return Status(Code::kInvalid, text("a range at ", Hex{spec.base}, "; models lie from ", Hex{device::kModelBase},
                                       " on, at multiples of ", granularity));
  }
  return space_.reserve(spec.base, spec.bytes, memory::Region::kModel);
}

Status Models::zero(uint64_t from, uint64_t bytes) {
  if (bytes == 0) return {};
  Result<std::unique_ptr<device::Stream>> stream = device_->make_stream();
  if (!stream.ok()) return stream.status();
  ROUSE_RETURN_IF_ERROR(stream.value()->zero(from, bytes));
  Result<std::unique_ptr<device::Event>> zeroed = stream.value()->record();
  if (!zeroed.ok()) return zeroed.status();
  return zeroed.value()->wait(Clock::now() + options_.patience);
}

Status Models::fill(Model& model) {
  const ModelSpec& spec = model.mapped.spec;
  ROUSE_RETURN_IF_ERROR(space_.map(spec.base));
  const uint64_t granularity = device_->granularity();
  const uint64_t range = (spec.bytes + granularity - 1) / granularity * granularity;
  // What no image overwrites was another model's.
  const uint64_t copied = spec.image_path.empty() ? 0 : spec.bytes;
  ROUSE_RETURN_IF_ERROR(zero(spec.base + copied, range - copied));
  return copied == 0 ? Status() : start(model);
}

Result<std::shared_ptr<const Models::Image>> Models::open_image(const ModelSpec& spec) {
  Result<std::unique_ptr<memory::HostImage>> file =
      memory::HostImage::open(spec.image_path, 0, memory::HostImage::Pages::kLater);
  if (!file.ok()) return file.status();
  if (file.value()->bytes() < spec.bytes) {
    return Status(Code::kInvalid, text("the image ", spec.image_path, " has ", file.value()->bytes(),
                                        " bytes instead of ", spec.bytes));
  }
  auto image = std::make_shared<Image>();
  image->file = std::move(file).value();
  if (!options_.pin_images) return std::shared_ptr<const Image>(std::move(image));
  std::shared_ptr<const Image>& pinned = pinned_[spec.version_id];
  if (pinned && pinned->file->same_file(*image->file)) return pinned;
  auto pin = device_->pin_existing(image->file->data(), image->file->bytes());
  if (pin.ok()) image->pin = std::move(pin).value();
  else log_warning("version " + spec.version_id + " is copied from memory that is not pinned: " + pin.status().text());
  pinned = std::move(image);
  return pinned;
}

Status Models::start(Model& model) {
  const ModelSpec& spec = model.mapped.spec;
  Result<std::shared_ptr<const Image>> image = open_image(spec);
  if (!image.ok()) return image.status();
  const Order order = order_of(spec);
  Result<transfer::Plan> plan = transfer::plan_groups(spec.bytes, order.first_uses, order.tables, group_bytes_);
  if (!plan.ok()) return plan.status();
  transfer::SwapRequest request;
  request.residency = std::make_shared<transfer::Residency>(spec.base, spec.bytes);
  request.plan = std::move(plan).value();
  request.image = image.value()->file->data();
  request.keep = std::move(image).value();
  model.mapped.residency = request.residency;
  Result<std::shared_ptr<transfer::Swap>> swap = link_->start(std::move(request));
  if (!swap.ok()) return swap.status();
  model.swap = std::move(swap).value();
  return {};
}

Answer<std::monostate> Models::map(const ModelSpec& spec) {
  Model model{{spec, nullptr, std::make_shared<executor::Account>(executor::Account::kNoLimit)}, nullptr};
  if (spec.bytes > 0) {
    if (const Status reserved = reserve(spec); !reserved.ok()) return answer(reserved);
    // The swap is the last step: where one fails, none is under way.
    if (const Status filled = fill(model); !filled.ok()) {
      const Status returned = space_.release(spec.base);
      if (returned.ok()) return answer(filled);
      return answer(Status(filled.code(), filled.text() + "; and giving it back failed: " + returned.text()));
    }
  }
  const std::lock_guard lock(mutex_);
  models_[spec.version_id] = std::move(model);
  return std::monostate();
}

void Models::cancel(const std::string& version_id) {
  const std::lock_guard lock(mutex_);
  const auto found = models_.find(version_id);
  if (found != models_.end() && found->second.swap) found->second.swap->cancel();
}

Answer<uint64_t> Models::unmap(const std::string& version_id) {
  Model model;
  {
    const std::lock_guard lock(mutex_);
    const auto found = models_.find(version_id);
    if (found == models_.end()) return uint64_t{0};
    model = found->second;
  }
  const ModelSpec& spec = model.mapped.spec;
  if (model.swap) {
    model.swap->cancel();
    const Status ended = model.swap->wait(Clock::now() + options_.patience);
    if (!model.swap->over()) {
      return RpcError{RpcCode::kUnavailable, "MODEL_BUSY", "version " + spec.version_id + ": " + ended.text(), {}, 1.0};
    }
  }
  uint64_t bytes = 0;
  if (spec.bytes > 0) {
    const uint64_t before = space_.usage().mapped;
    const Status released = space_.release(spec.base);
    if (!released.ok()) return answer(released);
    bytes = before - space_.usage().mapped;
  }
  const std::lock_guard lock(mutex_);
  models_.erase(version_id);
  return bytes;
}

std::optional<MappedModel> Models::find(const std::string& version_id) const {
  const std::lock_guard lock(mutex_);
  const auto found = models_.find(version_id);
  return found == models_.end() ? std::nullopt : std::optional(found->second.mapped);
}

SwapInfo Models::swap(const std::string& version_id) const {
  const std::lock_guard lock(mutex_);
  const auto found = models_.find(version_id);
  if (found == models_.end()) return {};
  const Model& model = found->second;
  if (!model.swap) return {model.mapped.spec.bytes, ""};
  return {model.swap->copied_bytes(), model.mapped.residency->failure().text()};
}

WorkingInfo Models::working(const std::string& version_id) const {
  const std::lock_guard lock(mutex_);
  const auto found = models_.find(version_id);
  if (found == models_.end()) return {};
  const executor::Account& working = *found->second.mapped.working;
  return {working.held(), working.most()};
}

MemoryInfo Models::memory() const {
  const device::Usage usage = space_.usage();
  return {usage.capacity, usage.mapped, usage.free, group_bytes_};
}

}  // namespace rouse::serve
