// A session's storages by name: numbers in an array, addresses inside ranges.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "rouse/base/status.h"
#include "rouse/executor/compute.h"
#include "rouse/executor/engine.h"

namespace rouse::executor {

class Storages {
 public:
  enum class State : std::uint8_t {
    kEmpty,
    kLive,
    kPoisoned,  // Was to be made by an operator that failed or was skipped.
  };
  struct Entry {
    c10::Storage storage;
    State state = State::kEmpty;
    bool writable = true;
    std::uint64_t counted = 0;  // Bytes in the session's account; operators may resize the storage meanwhile.
  };

  Storages(std::uint64_t max_bytes, const Compute& compute) : max_bytes_(max_bytes), compute_(compute) {}

  Status add_range(const Range& range);
  void remove_range(std::uint64_t base);

  // The entry of that name, or nullptr: the client named what it never made.
  const Entry* find(std::uint64_t name) const {
    if (name < entries_.size()) {
      const Entry& entry = entries_[name];
      return entry.state == State::kEmpty ? nullptr : &entry;
    }
    if (name < wire::kModelBase) return nullptr;
    const auto found = bound_.find(name);
    return found == bound_.end() ? nullptr : &found->second;
  }
  // Whether the name is a number that a client may use.
  static bool valid_number(std::uint64_t name) { return name < wire::kMaxStorages; }

  // kInvalid: a name that cannot be; kRefused: an address outside of the ranges; kExhausted: no memory.
  Status create(std::uint64_t name, std::uint64_t bytes);
  Status resize(std::uint64_t name, std::uint64_t bytes);
  Status put(std::uint64_t name, c10::Storage storage);
  Status poison(std::uint64_t name);
  bool free(std::uint64_t name);
  std::uint64_t bytes() const;
  // The most that they were.
  std::uint64_t most_bytes() const { return most_; }
  // Whether `more` bytes of scratch fit.
  Status room(std::uint64_t more) const;
  // Puts what an operator made of a storage's size into the account.
  void recount(std::uint64_t name);

 private:
  Status bind(std::uint64_t address, std::uint64_t bytes);
  Entry& slot(std::uint64_t name);
  // The entry's part of the account is so much now.
  void count(Entry& entry, std::uint64_t bytes);

  const std::uint64_t max_bytes_;
  const Compute compute_;
  std::uint64_t bytes_ = 0;
  std::uint64_t most_ = 0;
  std::vector<Entry> entries_;
  std::unordered_map<std::uint64_t, Entry> bound_;
  std::vector<Range> ranges_;
};

}  // namespace rouse::executor
