#include "storages.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <string>

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

Status Storages::room(std::uint64_t more) const {
  if (more <= max_bytes_ && bytes_ <= max_bytes_ - more) return {};
  return {Code::kExhausted, "OutOfMemoryError: " + std::to_string(more) + " bytes more than the session's " +
                                std::to_string(bytes_) + " are over its limit of " + std::to_string(max_bytes_)};
}

Status Storages::create(std::uint64_t name, std::uint64_t bytes) {
  if (name >= wire::kModelBase) return bind(name, bytes);
  if (!valid_number(name)) return {Code::kInvalid, "storage " + name_text(name) + ": no such number is allowed"};
  free(name);
  auto fits = room(bytes);
  if (fits.ok()) {
    try {
      auto* allocator = c10::GetCPUAllocator();
      return put(name,
                 c10::Storage(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator, true));
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
    auto* data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
    // Not resizable, not freed: the range is its owner's.
    bound_[address] = {c10::Storage(c10::Storage::use_byte_size_t(), bytes,
                                    c10::DataPtr(data, c10::Device(c10::DeviceType::CPU)), nullptr, false),
                       State::kLive, range.writable};
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
    auto fresh = c10::GetCPUAllocator()->allocate(bytes);
    if (std::min(before, bytes) != 0) std::memcpy(fresh.get(), entry->storage.data(), std::min(before, bytes));
    c10::Storage storage = entry->storage;
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.set_nbytes(bytes);
    bytes_ += bytes - entry->counted;
    entry->counted = bytes;
  } catch (const std::exception& error) {
    return {Code::kExhausted, std::string("OutOfMemoryError: ") + error.what()};
  }
  return {};
}

Status Storages::put(std::uint64_t name, c10::Storage storage) {
  if (!valid_number(name)) return {Code::kInvalid, "storage " + name_text(name) + ": no such number is allowed"};
  Entry& entry = slot(name);
  bytes_ -= entry.counted;
  entry.counted = storage.nbytes();
  bytes_ += entry.counted;
  entry.storage = std::move(storage);
  entry.state = State::kLive;
  return {};
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
