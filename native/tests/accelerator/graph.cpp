#include "graph.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <string>

#include "memory.h"
#include "rouse/tape/graph_impl.h"
#include "state.h"

namespace rouse::accelerator {
namespace {

thread_local Capture* capturing = nullptr;

}  // namespace

// Nothing in it is used twice, so that each call of a graph has addresses of its own.
class Capture::Pool {
 public:
  ~Pool() {
    for (void* const block : blocks_) Memory::get().free(block);
  }
  void* allocate(std::size_t bytes) {
    void* const made = Memory::get().allocate(bytes);
    if (made == nullptr) C10_THROW_ERROR(OutOfMemoryError, "the stand-in has no memory left");
    blocks_.insert(made);
    return made;
  }
  bool has(void* address) const { return blocks_.contains(address); }

 private:
  std::set<void*> blocks_;
};

Capture* Capture::current() { return capturing; }

c10::DataPtr Capture::allocate(std::size_t bytes) {
  if (!pool_) pool_ = std::make_shared<Pool>();
  void* const made = bytes == 0 ? nullptr : pool_->allocate(bytes);
  return {made, new std::shared_ptr<Pool>(pool_),
          [](void* held) { delete static_cast<std::shared_ptr<Pool>*>(held); }, device()};
}

void Capture::keep(const c10::Storage& storage) {
  if (storage.nbytes() == 0 || (pool_ && pool_->has(const_cast<void*>(storage.data())))) return;
  std::byte* const at = Memory::get().inside(storage.data());
  before_.emplace_back(at, std::vector<std::byte>(at, at + storage.nbytes()));
}

void Capture::refuse(const char* what) {
  refused_ = true;
  C10_THROW_ERROR(Error, std::string("operation not permitted when stream is capturing: ") + what);
}

#if ROUSE_GRAPHS

class StandInGraph final : public at::GraphImplInterface {
 public:
  explicit StandInGraph(const at::GraphImplArgs&) {}
  ~StandInGraph() override { stop(); }

  void capture_begin(at::MempoolId_t, at::GraphCaptureMode) override {
    TORCH_CHECK(current_stream() != 0, "graphs are captured on a stream that is not the default one");
    TORCH_CHECK(!capture_ && capturing == nullptr, "there is a capture already");
    capture_ = std::make_unique<Capture>();
    capturing = capture_.get();
  }
  void capture_end() override {
    TORCH_CHECK(capture_ && capturing == capture_.get(), "there is no capture to end");
    stop();
    // The first that was kept of a place is what was there.
    for (auto kept = capture_->before_.rbegin(); kept != capture_->before_.rend(); ++kept)
      std::memcpy(kept->first, kept->second.data(), kept->second.size());
    capture_->before_.clear();
    TORCH_CHECK(!capture_->refused_, "the capture failed before its end");
  }
  void replay() override {
    TORCH_CHECK(capture_ && capturing == nullptr, "there is no graph to replay");
    try {
      for (const auto& call : capture_->calls_) call();
    } catch (const std::exception& error) {
      // Heard of later, as any error of the device.
      state().failed = error.what();
    }
  }
  void reset() override {
    stop();
    capture_.reset();
  }
  void instantiate() override {}
  at::MempoolId_t pool() const override { return {0, 0}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override {}

 private:
  void stop() {
    if (capture_ && capturing == capture_.get()) capturing = nullptr;
  }

  std::unique_ptr<Capture> capture_;
};

void register_graphs() {
  at::GraphImplRegistry()->Register(
      c10::DeviceTypeName(c10::DeviceType::PrivateUse1, /*lower_case=*/false), [](const at::GraphImplArgs& arguments) {
        return std::unique_ptr<at::GraphImplInterface>(std::make_unique<StandInGraph>(arguments));
      });
}

#else

void register_graphs() {}

#endif

}  // namespace rouse::accelerator
