#include "storages.h"

#include <algorithm>
#include <string>

#include "rouse/executor/account.h"

namespace rouse::executor {
namespace {

std::string name_text(std::uint64_t name) {
  char text[32];
  std::snprintf(text, sizeof(text), name >= wire::kModelBase ? "0x%llx" : "%llu",
                static_cast<unsigned long long>(name));
  return text;
}

Status never_made(std::uint64_t name) {
  return {Code::kInvalid, "storage " + name_text(name) + " was never made in this session"};
}

}  // namespace

Status Storages::add_range(const Range& range) {
  if (range.base < wire::kModelBase || range.bytes == 0 || range.base + range.bytes < range.base) {
    return {Code::kInvalid, "range at " + name_text(range.base) + ": not above the base of models"};
  }
  for (const auto& other : ranges_) {
    if (range.base < other.base + other.bytes && other.base < range.base + range.bytes) {
      return {Code::kInvalid, "range at " + name_text(range.base) + ": another one lies there"};
    }
  }
  ranges_.push_back(range);
  return {};
}

void Storages::remove_range(std::uint64_t base) {
  const auto found = std::find_if(ranges_.begin(), ranges_.end(), [&](const Range& each) { return each.base == base; });
  if (found == ranges_.end()) return;
  const Range range = *found;
  ranges_.erase(found);
  std::erase_if(bound_, [&](const auto& each) { return each.first - range.base < range.bytes; });
}

Storages::Entry& Storages::slot(std::uint64_t name) {
  if (name >= entries_.size()) entries_.resize(std::max<std::size_t>(name + 1, entries_.size() * 2));
  return entries_[name];
}

void Storages::count(Entry& entry, std::uint64_t bytes) {
  bytes_ += bytes - entry.counted;
  entry.counted = bytes;
  most_ = std::max(most_, bytes_);
}

Status Storages::room(std::uint64_t more) const {
  if (more <= max_bytes_ && bytes_ <= max_bytes_ - more) return {};
  return {Code::kExhausted, "OutOfMemoryError: no room for " + std::to_string(more) + " bytes more: the session has " +
                                std::to_string(bytes_) + ", of at most " + std::to_string(max_bytes_) +
                                " beside the weights; " + kGiveMore};
}

Status Storages::create(std::uint64_t name, std::uint64_t bytes) {
  if (name >= wire::kModelBase) return bind(name, bytes);
  if (!valid_number(name)) return {Code::kInvalid, "storage " + name_text(name) + ": no such number is allowed"};
  free(name);
  auto fits = room(bytes);
  if (fits.ok()) {
    try {
      return put(name, compute_.make_storage(bytes));
    } catch (const std::exception& error) {
      fits = {Code::kExhausted, std::string("OutOfMemoryError: ") + error.what()};
    }
  }
  ROUSE_RETURN_IF_ERROR(poison(name));
  return fits;
}

Status Storages::bind(std::uint64_t address, std::uint64_t bytes) {
  for (const auto& range : ranges_) {
    if (address < range.base || address - range.base > range.bytes) continue;
    if (bytes > range.bytes - (address - range.base)) break;
    bound_[address] = {compute_.at(address, bytes), State::kLive, range.writable};
    return {};
  }
  return {Code::kInvalid, "address " + name_text(address) + " with " + std::to_string(bytes) +
                              " bytes is not inside a range that this session may use"};
}

Status Storages::resize(std::uint64_t name, std::uint64_t bytes) {
  if (!find(name)) return never_made(name);
  if (name >= wire::kModelBase)
    return {Code::kInvalid, "storage " + name_text(name) + ": a model's range has its size"};
  Entry* entry = &entries_[name];
  if (entry->state == State::kPoisoned) return {};
  const auto before = static_cast<std::uint64_t>(entry->storage.nbytes());
  if (bytes > before) ROUSE_RETURN_IF_ERROR(room(bytes - before));
  try {
    c10::Storage fresh = compute_.make_storage(bytes);
    ROUSE_RETURN_IF_ERROR(compute_.copy(fresh, entry->storage, std::min(before, bytes)));
    c10::Storage storage = entry->storage;
    storage.set_data_ptr_noswap(fresh.set_data_ptr(c10::DataPtr()));
    storage.set_nbytes(bytes);
    count(*entry, bytes);
  } catch (const std::exception& error) {
    return {Code::kExhausted, std::string("OutOfMemoryError: ") + error.what()};
  }
  return {};
}

Status Storages::put(std::uint64_t name, c10::Storage storage) {
  if (!valid_number(name)) return {Code::kInvalid, "storage " + name_text(name) + ": no such number is allowed"};
  Entry& entry = slot(name);
  count(entry, storage.nbytes());
  entry.storage = std::move(storage);
  entry.state = State::kLive;
  return {};
}

void Storages::recount(std::uint64_t name) {
  if (name >= entries_.size() || entries_[name].state != State::kLive) return;
  Entry& entry = entries_[name];
  count(entry, entry.storage.nbytes());
}

Status Storages::poison(std::uint64_t name) {
  if (!valid_number(name)) return {Code::kInvalid, "storage " + name_text(name) + ": no such number is allowed"};
  free(name);
  slot(name).state = State::kPoisoned;
  return {};
}

bool Storages::free(std::uint64_t name) {
  if (name >= wire::kModelBase) return bound_.erase(name) != 0;
  if (name >= entries_.size() || entries_[name].state == State::kEmpty) return false;
  bytes_ -= entries_[name].counted;
  entries_[name] = Entry();
  return true;
}

std::uint64_t Storages::bytes() const { return bytes_; }

}  // namespace rouse::executor
