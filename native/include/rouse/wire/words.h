// Writing and reading messages word by word. The reader never goes past its bytes, whatever they say.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "rouse/wire/format.h"

namespace rouse::wire {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::size_t padded(std::size_t bytes) { return (bytes + 7) & ~std::size_t{7}; }

// Words in a buffer that grows and is used again.
class Writer {
 public:
  void clear() { words_.clear(); }
  void word(std::uint64_t value) { words_.push_back(value); }
  void words(std::span<const std::int64_t> values) { words_.insert(words_.end(), values.begin(), values.end()); }
  void real(double value) { word(std::bit_cast<std::uint64_t>(value)); }
  void item(Tag tag, std::uint32_t count = 0, std::uint8_t dtype = 0, std::uint8_t flags = 0,
            std::uint8_t dimensions = 0) {
    word(std::bit_cast<std::uint64_t>(Item{tag, dtype, flags, dimensions, count}));
  }
  // Padded with zeros to a word.
  void bytes(std::span<const std::byte> data) {
    const std::size_t at = words_.size();
    words_.resize(at + data.size() / 8 + (data.size() % 8 != 0 ? 1 : 0), 0);
    if (!data.empty()) std::memcpy(words_.data() + at, data.data(), data.size());
  }
  void text(std::string_view value) { bytes(std::as_bytes(std::span(value))); }
  // A fixed head, whose size is a multiple of 8.
  template <typename T>
  void head(const T& value) {
    static_assert(sizeof(T) % 8 == 0);
    bytes(std::as_bytes(std::span(&value, 1)));
  }
  std::size_t size_bytes() const { return 8 * words_.size(); }
  std::span<const std::uint64_t> view() const { return words_; }
  std::span<const std::byte> as_bytes() const { return std::as_bytes(std::span(words_)); }
  std::uint64_t& operator[](std::size_t at) { return words_[at]; }

 private:
  std::vector<std::uint64_t> words_;
};

// Over bytes that nobody else can change. Every call returns false, and changes nothing, where too little is left.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  bool head(T& value) {
    if (bytes_.size() < sizeof(T)) return false;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return true;
  }
  bool word(std::uint64_t& value) { return head(value); }
  bool item(Item& value) { return head(value); }
  // The item that item() would give next.
  bool peek(Item& value) const {
    if (bytes_.size() < sizeof(Item)) return false;
    std::memcpy(&value, bytes_.data(), sizeof(Item));
    return true;
  }
  template <typename Word>
  bool words(std::size_t count, std::span<Word> values) {
    static_assert(sizeof(Word) == 8);
    if (values.size() != count || bytes_.size() / 8 < count) return false;
    if (count != 0) std::memcpy(values.data(), bytes_.data(), 8 * count);
    bytes_ = bytes_.subspan(8 * count);
    return true;
  }
  // `count` bytes and their padding.
  bool bytes(std::size_t count, std::span<const std::byte>& value) {
    if (count > bytes_.size() || padded(count) > bytes_.size()) return false;
    value = bytes_.first(count);
    bytes_ = bytes_.subspan(padded(count));
    return true;
  }
  bool text(std::size_t count, std::string_view& value) {
    std::span<const std::byte> data;
    if (!bytes(count, data)) return false;
    value = {reinterpret_cast<const char*>(data.data()), data.size()};
    return true;
  }
  std::size_t left() const { return bytes_.size(); }
  std::span<const std::byte> rest() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace rouse::wire
