// A link into a device's memory: from host memory, or from a sibling device. One thread copies; several swaps share it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "rouse/device/device.h"
#include "rouse/transfer/fair.h"
#include "rouse/transfer/plan.h"
#include "rouse/transfer/residency.h"

namespace rouse::transfer {

// One model on its way in. Thread-safe.
class Swap {
 public:
  // Waits until it is over: everything is there, or it failed or was cancelled. Then nothing writes to the range any
  // more. kDeadline where it is not over in time: it goes on.
  Status wait(Deadline deadline);
  // It ends soon with kCancelled; wait() says when.
  void cancel();
  uint64_t copied_bytes() const { return copied_.load(std::memory_order_relaxed); }
  bool over() const { return over_.load(std::memory_order_acquire) != 0; }
  // From its start until it was over, or until now.
  std::chrono::nanoseconds took() const;

 private:
  friend class Link;
  void end(Status status);

  std::atomic<bool> cancelled_{false};
  std::atomic<uint64_t> copied_{0};
  std::atomic<uint32_t> over_{0};  // waiters sleep on it
  std::chrono::steady_clock::time_point started_, ended_;
  Status status_;  // written before over_
};

struct SwapRequest {
  std::shared_ptr<Residency> residency;  // fresh; its range is mapped and stays so until the swap is over
  Plan plan;                             // for as many bytes
  const void* image = nullptr;           // host memory to copy from, as many bytes; or
  device::Device* peer = nullptr;        // a sibling that has the model
  uint64_t peer_address = 0;             // at this address
  uint32_t weight = 1;                   // share of the link among swaps
  std::shared_ptr<const void> keep;      // held until the swap is over, as the image
};

struct LinkOptions {
  uint64_t bytes_per_second = 0;     // 0: as fast as it goes; host topologies give one, to show contention
  uint64_t quantum_bytes = 2 << 20;  // what one swap copies before the next one's turn, times its weight
  uint64_t step_bytes = 4 << 20;     // most that is copied between two looks at cancellations and demands
  uint32_t in_flight = 2;            // steps given to the device before the first is waited for
  uint32_t max_swaps = 256;          // at once
};

class Link {
 public:
  // `device` outlives the link.
  static Result<std::unique_ptr<Link>> make(device::Device& device, const LinkOptions& options);
  // Cancels what is under way and waits for it.
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // kInvalid: a plan for another size; kExhausted: max_swaps are under way.
  Result<std::shared_ptr<Swap>> start(SwapRequest request);

 private:
  struct Job;
  struct Step;
  using Jobs = std::map<uint64_t, std::unique_ptr<Job>>;

  Link(const LinkOptions& options, std::unique_ptr<device::Stream> stream);
  void run();
  // What the job copies next, empty where all of it was given to the device: what somebody waits for, else what is
  // missing of its next group, at most a step.
  std::vector<Extent> next_step(Job& job);
  void add_from_plan(Job& job, std::vector<Extent>& step) const;
  Status issue(uint64_t number, Job& job, std::vector<Extent> step);
  // Waits for the oldest step and tells who waits for it.
  void retire();
  void drain();
  void end(Jobs::iterator job, Status status);
  // Ends the jobs that are done, cancelled or failed.
  void end_some();
  // Takes new jobs. False where there is nothing to do and the link is to stop.
  bool admit(bool may_sleep);

  const LinkOptions options_;
  const uint64_t step_bytes_;
  const std::unique_ptr<device::Stream> stream_;

  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Job>> arriving_;
  uint32_t open_ = 0;  // jobs that are not over
  bool stopping_ = false;

  // The thread's own.
  Jobs jobs_;
  uint64_t last_ = 0;
  DeficitRoundRobin fair_;
  TokenBucket bucket_;
  std::deque<Step> steps_;
  std::thread thread_;
};

}  // namespace rouse::transfer
