#include "rouse/transfer/link.h"

#include <algorithm>

#include "futex.h"
#include "rouse/base/text.h"

namespace rouse::transfer {

using Clock = std::chrono::steady_clock;

namespace {

// With a limited bandwidth a step takes at most this share of a second: cancelling and demanding wait no longer.
constexpr uint64_t kStepsPerSecond = 200;

uint64_t step_bytes(const LinkOptions& options) {
  if (options.bytes_per_second == 0) return options.step_bytes;
  return std::min(options.step_bytes, std::max(options.bytes_per_second / kStepsPerSecond, kBlockBytes));
}

uint64_t total(const std::vector<Extent>& extents) {
  uint64_t sum = 0;
  for (const Extent& extent : extents) sum += extent.bytes;
  return sum;
}

// A device that has not copied one step by then has failed.
constexpr auto kStepPatience = std::chrono::seconds(60);

}  // namespace

Status Swap::wait(Deadline deadline) {
  while (!over()) {
    if (Clock::now() >= deadline) {
      return Status(Code::kDeadline, text("a swap has copied ", copied_bytes(), " B and is not over in time"));
    }
    futex_wait(over_, 0, deadline);
  }
  return status_;
}

void Swap::cancel() { cancelled_.store(true, std::memory_order_release); }

std::chrono::nanoseconds Swap::took() const { return (over() ? ended_ : Clock::now()) - started_; }

void Swap::end(Status status) {
  status_ = std::move(status);
  ended_ = Clock::now();
  over_.store(1, std::memory_order_release);
  futex_wake_all(over_);
}

struct Link::Job {
  SwapRequest request;
  std::shared_ptr<Swap> swap;
  size_t extent = 0;              // of the plan: what comes next
  size_t group = 0;               // that it is in
  uint64_t within = 0;            // bytes of it that were passed
  uint32_t in_flight = 0;         // steps
  bool demand_in_flight = false;  // one of them was not the plan's next
  bool issued = false;            // all that is missing was given to the device
  std::vector<Extent> next;       // a step that waits for its turn
  Status failed;
};

struct Link::Step {
  uint64_t job;
  std::vector<Extent> extents;
  std::unique_ptr<device::Event> event;
};

Result<std::unique_ptr<Link>> Link::make(device::Device& device, const LinkOptions& options) {
  if (options.step_bytes < kBlockBytes || options.in_flight == 0 || options.in_flight > 64 || options.max_swaps == 0) {
    return Status(Code::kInvalid, text("a link with steps of ", options.step_bytes, " B, ", options.in_flight,
                                       " in flight, ", options.max_swaps, " swaps: a step is ", kBlockBytes,
                                       " B or more, 1 to 64 are in flight, and swaps are 1 or more"));
  }
  auto stream = device.make_stream();
  if (!stream.ok()) return stream.status();
  return std::unique_ptr<Link>(new Link(options, std::move(stream).value()));
}

Link::Link(const LinkOptions& options, std::unique_ptr<device::Stream> stream)
    : options_(options),
      step_bytes_(step_bytes(options)),
      stream_(std::move(stream)),
      fair_(options.quantum_bytes),
      bucket_(options.bytes_per_second),
      thread_([this] { run(); }) {}

Link::~Link() {
  {
    std::lock_guard guard(lock_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Result<std::shared_ptr<Swap>> Link::start(SwapRequest request) {
  if (!request.residency || request.plan.bytes != request.residency->bytes() || (!request.image && !request.peer)) {
    return Status(Code::kInvalid,
                  text("a swap of ", request.residency ? request.residency->bytes() : 0, " B with a plan for ",
                       request.plan.bytes, " B from ", request.image || request.peer ? "somewhere" : "nowhere"));
  }
  auto job = std::make_unique<Job>();
  job->request = std::move(request);
  job->swap = std::make_shared<Swap>();
  job->swap->started_ = Clock::now();
  std::shared_ptr<Swap> swap = job->swap;
  {
    std::lock_guard guard(lock_);
    if (open_ >= options_.max_swaps || stopping_) {
      return Status(Code::kExhausted, text(open_, " swaps are under way on one link already"));
    }
    ++open_;
    arriving_.push_back(std::move(job));
  }
  changed_.notify_all();
  return swap;
}

bool Link::admit(bool may_sleep) {
  std::unique_lock guard(lock_);
  if (may_sleep) changed_.wait(guard, [&] { return stopping_ || !arriving_.empty(); });
  while (!arriving_.empty()) {
    fair_.add(++last_, arriving_.front()->request.weight);
    jobs_[last_] = std::move(arriving_.front());
    arriving_.pop_front();
  }
  if (stopping_) {
    for (auto& [number, job] : jobs_) job->swap->cancel();
  }
  return !stopping_ || !jobs_.empty();
}

void Link::add_from_plan(Job& job, std::vector<Extent>& step) const {
  const Plan& plan = job.request.plan;
  uint64_t bytes = 0;
  while (job.extent < plan.extents.size()) {
    if (job.extent == plan.ends[job.group]) {
      if (!step.empty()) return;
      ++job.group;
    }
    const Extent whole = plan.extents[job.extent];
    const Extent rest{whole.offset + job.within, whole.bytes - job.within};
    const auto missing = job.request.residency->first_missing(rest, step_bytes_ - bytes);
    if (!missing) {
      ++job.extent;
      job.within = 0;
      continue;
    }
    job.within = missing->offset + missing->bytes - whole.offset;
    step.push_back(*missing);
    bytes += missing->bytes;
    if (bytes + kBlockBytes > step_bytes_) return;
  }
}

std::vector<Extent> Link::next_step(Job& job) {
  Residency& residency = *job.request.residency;
  auto demanded = residency.next_demand(step_bytes_);
  // What is in flight is not marked yet. It may be just what is asked for, or what the plan would take next; no byte
  // is written after somebody may have begun to read it.
  if ((demanded && job.in_flight > 0) || job.demand_in_flight) {
    drain();
    job.demand_in_flight = false;
    demanded = residency.next_demand(step_bytes_);
  }
  std::vector<Extent> step;
  if (demanded) {
    job.demand_in_flight = true;
    step.push_back(*demanded);
  } else {
    add_from_plan(job, step);
  }
  return step;
}

Status Link::issue(uint64_t number, Job& job, std::vector<Extent> step) {
  const SwapRequest& request = job.request;
  for (const Extent& extent : step) {
    const uint64_t to = request.residency->address() + extent.offset;
    if (request.peer) {
      ROUSE_RETURN_IF_ERROR(stream_->copy_peer(to, *request.peer, request.peer_address + extent.offset, extent.bytes));
    } else {
      const char* from = static_cast<const char*>(request.image) + extent.offset;
      ROUSE_RETURN_IF_ERROR(stream_->copy_in(to, from, extent.bytes));
    }
  }
  auto event = stream_->record();
  if (!event.ok()) return event.status();
  steps_.push_back({number, std::move(step), std::move(event).value()});
  ++job.in_flight;
  return {};
}

void Link::retire() {
  Step step = std::move(steps_.front());
  steps_.pop_front();
  Job& job = *jobs_.at(step.job);
  --job.in_flight;
  if (Status status = step.event->wait(Clock::now() + kStepPatience); !status.ok()) {
    job.failed = std::move(status);
    return;
  }
  job.swap->copied_.fetch_add(total(step.extents), std::memory_order_relaxed);
  for (const Extent& extent : step.extents) job.request.residency->publish(extent.offset, extent.bytes);
}

void Link::drain() {
  while (!steps_.empty()) retire();
}

void Link::end(Jobs::iterator job, Status status) {
  drain();
  if (status.ok()) status = job->second->failed;
  Residency& residency = *job->second->request.residency;
  if (status.ok()) {
    residency.finish();
  } else {
    residency.fail(status);
  }
  fair_.remove(job->first);
  const std::shared_ptr<Swap> swap = job->second->swap;
  jobs_.erase(job);  // and what it kept, before anybody is told that it is over
  {
    std::lock_guard guard(lock_);
    --open_;
  }
  swap->end(std::move(status));
}

void Link::end_some() {
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    const auto job = at++;
    if (!job->second->failed.ok()) {
      end(job, job->second->failed);
    } else if (job->second->swap->cancelled_.load(std::memory_order_acquire)) {
      end(job, Status(Code::kCancelled, "the swap was cancelled"));
    } else if (job->second->issued && job->second->in_flight == 0) {
      end(job, {});
    }
  }
}

void Link::run() {
  while (admit(jobs_.empty())) {
    end_some();
    if (const auto pause = bucket_.wait(Clock::now()); pause > Clock::duration::zero()) {
      drain();
      // At most a step's worth of time; a cancellation is seen after it.
      std::unique_lock guard(lock_);
      changed_.wait_for(guard, pause, [&] { return stopping_; });
      continue;
    }
    const auto picked = fair_.next([&](uint64_t number) -> uint64_t {
      Job& job = *jobs_.at(number);
      if (job.next.empty() && !job.issued) {
        job.next = next_step(job);
        job.issued = job.next.empty();
      }
      return total(job.next);
    });
    if (!picked) {
      drain();
      continue;
    }
    Job& job = *jobs_.at(*picked);
    const uint64_t bytes = total(job.next);
    if (Status status = issue(*picked, job, std::exchange(job.next, {})); !status.ok()) job.failed = std::move(status);
    bucket_.spend(bytes, Clock::now());
    while (steps_.size() >= options_.in_flight || (!steps_.empty() && steps_.front().event->query().ok())) retire();
  }
}

}  // namespace rouse::transfer
