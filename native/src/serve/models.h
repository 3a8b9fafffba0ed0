// The models that are mapped on a device: their ranges, their physical memory, and the swaps that bring their bytes.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "rouse/device/device.h"
#include "rouse/executor/account.h"
#include "rouse/memory/host_image.h"
#include "rouse/memory/space.h"
#include "rouse/serve/backend.h"
#include "rouse/transfer/link.h"
#include "rouse/transfer/residency.h"

namespace rouse::serve {

struct MappedModel {
  ModelSpec spec;
  // What of it has arrived; null: there is nothing to wait for.
  std::shared_ptr<transfer::Residency> residency;
  // What its sessions and replays hold beside the weights, together.
  std::shared_ptr<executor::Account> working;
};

struct ModelsOptions {
  transfer::LinkOptions link;
  // What is copied before anybody is told. 0: measured when the device is made, as the elbow of its throughput curve.
  uint64_t group_bytes = 0;
  // How long the end of a cancelled swap is waited for, and a small part that is zeroed.
  std::chrono::milliseconds patience = std::chrono::seconds(60);
  // Whether images are pinned, as a device copies far faster from such memory; that takes longer than a copy, so they
  // stay so until another file is a version's image.
  bool pin_images = false;
};

// Thread-safe, but for this: one thread maps and unmaps. A model's memory may be used while `find` names it, nobody
// unmaps it, and as far as its residency says that it is there.
class Models {
 public:
  static Result<std::unique_ptr<Models>> make(std::unique_ptr<device::Device> device, const ModelsOptions& options);
  // Swaps that are under way are cancelled.
  ~Models();
  Models(const Models&) = delete;
  Models& operator=(const Models&) = delete;

  // Takes the range and its memory, and gives the swap to the device's link. All or nothing: what fails half-way is
  // given back. What the swap itself fails with, those hear who wait for it.
  Answer<std::monostate> map(const ModelSpec& spec);
  // Ends a model's swap, if there is one, without waiting for its end: who waits for its bytes is told.
  void cancel(const std::string& version_id);
  // Bytes given back; 0 where it was not mapped. When it returns, nothing is written to the range any more. MODEL_BUSY
  // where its swap does not end in time; then it is still mapped.
  Answer<uint64_t> unmap(const std::string& version_id);
  // Gives memory that is kept for the next model back to the device.
  Status trim() { return space_.trim(); }
  std::optional<MappedModel> find(const std::string& version_id) const;
  SwapInfo swap(const std::string& version_id) const;
  WorkingInfo working(const std::string& version_id) const;
  MemoryInfo memory() const;
  // Whether ranges, chunks and the device agree; see Space::check.
  Status check() const { return space_.check(); }

 private:
  struct Model {
    MappedModel mapped;
    std::shared_ptr<transfer::Swap> swap;  // null: nothing was copied
  };
  struct Image {
    std::unique_ptr<memory::HostImage> file;
    std::unique_ptr<device::PinnedMemory> pin;  // Before `file` goes. Null: it is not pinned.
  };

  Models(std::unique_ptr<device::Device> device, const ModelsOptions& options);
  Status reserve(const ModelSpec& spec);
  // With the range reserved: memory under it, zeros where no image comes, and the swap.
  Status fill(Model& model);
  Status zero(uint64_t from, uint64_t bytes);
  Status start(Model& model);
  Result<std::shared_ptr<const Image>> open_image(const ModelSpec& spec);

  const ModelsOptions options_;
  const std::unique_ptr<device::Device> device_;
  memory::Space space_;
  uint64_t group_bytes_ = 0;
  std::unique_ptr<transfer::Link> link_;
  mutable std::mutex mutex_;
  std::map<std::string, Model> models_;
  std::map<std::string, std::shared_ptr<const Image>> pinned_;  // by version, of the thread that maps
};

}  // namespace rouse::serve
