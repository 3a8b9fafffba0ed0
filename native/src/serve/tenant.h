// Who may use a device whose working memory is not ours to clear.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "rouse/base/status.h"

namespace rouse::serve {

// PyTorch's allocator of an accelerator gives what one operator freed to the next as it is. Functions that must not read
// each other's memory therefore never share one: an executor there serves the first version that comes, for its life.
class Tenant {
 public:
  enum Sharing { kMany, kOne };
  explicit Tenant(Sharing sharing) : sharing_(sharing) {}

  // Thread-safe. REFUSED: another version was here first.
  Status admit(const std::string& version_id) {
    if (sharing_ == kMany) return {};
    const std::lock_guard lock(mutex_);
    if (!version_) version_ = version_id;
    if (*version_ == version_id) return {};
    return {Code::kRefused, "this executor's device serves version '" + *version_ + "' only, and not '" + version_id +
                                "': freed memory of such a device is not cleared between functions; give the version "
                                "an executor of its own (isolation = \"isolated\")"};
  }

 private:
  const Sharing sharing_;
  std::mutex mutex_;
  std::optional<std::string> version_;
};

}  // namespace rouse::serve
