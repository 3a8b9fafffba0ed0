#include "cuda_api.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>

#include "rouse/base/text.h"

namespace rouse::device::cu {

Status Api::check(Result result, const char* call) const {
  if (result == kSuccess) return {};
  const char* said = nullptr;
  if (error_string(result, &said) != kSuccess || said == nullptr) said = "no text";
  return Status(result == kOutOfMemory ? Code::kExhausted : Code::kFailed,
                text("the CUDA driver: ", call, ": ", said, " (", result, ")"));
}

namespace {

rouse::Result<std::unique_ptr<Api>> load_new(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Status(Code::kUnsupported, text("no CUDA driver on this machine: ", dlerror()));
  }
  auto api = std::make_unique<Api>();
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, symbol));
    if (function == nullptr) missing = symbol;
  };
#define ROUSE_CUDA_FIND(name, symbol, parameters) find(api->name, symbol);
  ROUSE_CUDA_FUNCTIONS(ROUSE_CUDA_FIND)
#undef ROUSE_CUDA_FIND
  if (missing != nullptr) {
    return Status(Code::kUnsupported, text(library, " has no ", missing, ": the driver is older than CUDA 10.2"));
  }
  if (Status status = api->check(api->init(0), "cuInit"); !status.ok()) {
    return Status(Code::kUnsupported, status.text());
  }
  return api;
}

}  // namespace

rouse::Result<const Api*> load(const std::string& library) {
  // Never unloaded: memory and streams of it may outlive what loaded it.
  static std::mutex lock;
  static std::map<std::string, std::unique_ptr<Api>> loaded;
  std::lock_guard guard(lock);
  if (const auto found = loaded.find(library); found != loaded.end()) return found->second.get();
  auto api = load_new(library);
  if (!api.ok()) return api.status();
  return (loaded[library] = std::move(api).value()).get();
}

}  // namespace rouse::device::cu
