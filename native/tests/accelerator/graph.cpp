#include "graph.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "memory.h"
#include "rouse/tape/graph_impl.h"
#include "state.h"

namespace rouse::accelerator {
namespace {

thread_local Capture* capturing = nullptr;

}  // namespace

// Within a capture nothing in it is used twice, so that each call of a graph has addresses of its own; the next capture
// has what the ones before it freed.
class Capture::Pool {
 public:
  // The pool of that number, for as long as anybody holds it; {0, 0}: one of its own.
  static std::shared_ptr<Pool> of(at::MempoolId_t number) {
    static auto* const pools = new std::map<at::MempoolId_t, std::weak_ptr<Pool>>();
    if (number == at::MempoolId_t{0, 0}) return std::make_shared<Pool>();
    auto& known = (*pools)[number];
    auto pool = known.lock();
    if (!pool) known = pool = std::make_shared<Pool>();
    return pool;
  }
  ~Pool() {
    for (const auto& [block, bytes] : blocks_) Memory::get().free(block);
  }
  void* allocate(std::size_t bytes) {
    const auto found = free_.lower_bound(bytes);
    if (found != free_.end()) {
      void* const again = found->second;
      free_.erase(found);
      return again;
    }
    void* const made = Memory::get().allocate(bytes);
    if (made == nullptr) C10_THROW_ERROR(OutOfMemoryError, "the stand-in has no memory left");
    blocks_.emplace(made, bytes);
    return made;
  }
  void free(void* block) { freed_.push_back(block); }
  void begin() {
    for (void* const block : std::exchange(freed_, {})) free_.emplace(blocks_.at(block), block);
  }
  bool has(void* address) const { return blocks_.contains(address); }

 private:
  std::map<void*, std::size_t> blocks_;         // bytes by address
  std::multimap<std::size_t, void*> free_;      // by bytes
  std::vector<void*> freed_;                    // since the last capture began
};

Capture* Capture::current() { return capturing; }

c10::DataPtr Capture::allocate(std::size_t bytes) {
  struct Block {
    std::shared_ptr<Pool> pool;
    void* address;
  };
  void* const made = bytes == 0 ? nullptr : pool_->allocate(bytes);
  return {made, new Block{pool_, made},
          [](void* held) {
            const std::unique_ptr<Block> block(static_cast<Block*>(held));
            if (block->address != nullptr) block->pool->free(block->address);
          },
          device()};
}

void Capture::keep(const c10::Storage& storage) {
  if (storage.nbytes() == 0 || pool_->has(const_cast<void*>(storage.data()))) return;
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

  void capture_begin(at::MempoolId_t pool, at::GraphCaptureMode) override {
    TORCH_CHECK(current_stream() != 0, "graphs are captured on a stream that is not the default one");
    TORCH_CHECK(!capture_ && capturing == nullptr, "there is a capture already");
    capture_ = std::make_unique<Capture>();
    capture_->pool_ = Capture::Pool::of(pool);
    capture_->pool_->begin();
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
