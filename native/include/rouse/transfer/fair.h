// Who may use a link next, and when. Pure: no clock, no thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>

namespace rouse::transfer {

// Deficit round robin (Shreedhar and Varghese 1995): each round a flow may send its weight's share of bytes more, and
// what it did not use stays while it has something to send.
class DeficitRoundRobin {
 public:
  using Flow = uint64_t;

  explicit DeficitRoundRobin(uint64_t quantum) : quantum_(std::max<uint64_t>(quantum, 1)) {}

  void add(Flow flow, uint32_t weight) { flows_.push_back({flow, std::max<uint32_t>(weight, 1), 0, false}); }
  void remove(Flow flow) {
    flows_.remove_if([&](const Entry& entry) { return entry.flow == flow; });
  }
  bool empty() const { return flows_.empty(); }

  // The flow whose next bytes go out; `cost` says how many that would be, 0 for a flow that has none now. The cost is
  // paid with this call. nullopt: no flow has any.
  std::optional<Flow> next(const std::function<uint64_t(Flow)>& cost) {
    size_t idle = 0;
    while (idle < flows_.size()) {
      Entry& entry = flows_.front();
      const uint64_t bytes = cost(entry.flow);
      if (bytes == 0) {
        entry.deficit = 0;
        ++idle;
      } else {
        idle = 0;
        if (!entry.visited) entry.deficit += quantum_ * entry.weight;
        entry.visited = true;
        if (bytes <= entry.deficit) {
          entry.deficit -= bytes;
          return entry.flow;
        }
      }
      entry.visited = false;
      flows_.splice(flows_.end(), flows_, flows_.begin());
    }
    return std::nullopt;
  }

 private:
  struct Entry {
    Flow flow;
    uint32_t weight;
    uint64_t deficit;
    bool visited;  // got its quantum in this round
  };
  const uint64_t quantum_;
  std::list<Entry> flows_;
};

// A bandwidth, by tokens: what is sent is owed, and nothing more is sent before it is paid.
class TokenBucket {
 public:
  using Clock = std::chrono::steady_clock;

  // `bytes_per_second` 0: no limit.
  explicit TokenBucket(uint64_t bytes_per_second) : rate_(bytes_per_second) {}

  // How long to wait before the next bytes.
  Clock::duration wait(Clock::time_point now) const {
    return rate_ == 0 || now >= paid_at_ ? Clock::duration::zero() : paid_at_ - now;
  }
  void spend(uint64_t bytes, Clock::time_point now) {
    if (rate_ == 0) return;
    const std::chrono::duration<double> worth(static_cast<double>(bytes) / static_cast<double>(rate_));
    paid_at_ = std::max(paid_at_, now) + std::chrono::duration_cast<Clock::duration>(worth);
  }

 private:
  const uint64_t rate_;
  Clock::time_point paid_at_{};
};

}  // namespace rouse::transfer
