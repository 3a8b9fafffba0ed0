// The models that are mapped on a device: their ranges, their physical memory, their bytes.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "rouse/device/device.h"
#include "rouse/serve/backend.h"

namespace rouse::serve {

// Thread-safe. A model's memory may be used while `find` names it and nobody unmaps it.
class Models {
 public:
  explicit Models(std::unique_ptr<device::Device> device) : device_(std::move(device)) {}
  ~Models();

  // All or nothing: what fails half-way is given back.
  Answer<std::monostate> map(const ModelSpec& spec);
  // Bytes given back; 0 where it was not mapped.
  Answer<uint64_t> unmap(const std::string& version_id);
  std::optional<ModelSpec> find(const std::string& version_id) const;
  MemoryInfo memory() const;

 private:
  struct Model {
    ModelSpec spec;
    uint64_t range_bytes = 0;  // 0: nothing is reserved.
    std::vector<device::ChunkId> chunks;
  };

  Status load(Model& model);
  Status give_back(Model& model);

  std::unique_ptr<device::Device> device_;
  mutable std::mutex mutex_;
  std::map<std::string, Model> models_;
};

}  // namespace rouse::serve
