// Little-endian numbers and lengths, written to and read from bytes; the reader checks before it reads.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "rouse/base/status.h"

namespace rouse {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

class ByteWriter {
 public:
  template <typename T>
  void number(T value) {
    static_assert(std::is_integral_v<T>);
    bytes(std::as_bytes(std::span(&value, 1)));
  }
  void bytes(std::span<const std::byte> data) {
    if (data.empty()) return;
    const std::size_t at = out_.size();
    out_.resize(at + data.size());
    std::memcpy(out_.data() + at, data.data(), data.size());
  }
  // A length of 32 bits, then as much.
  void string(std::string_view text) {
    number(static_cast<std::uint32_t>(text.size()));
    bytes(std::as_bytes(std::span(text)));
  }
  std::size_t size() const { return out_.size(); }
  std::vector<std::byte> take() { return std::move(out_); }

 private:
  std::vector<std::byte> out_;
};

// Reads to the end of what it was given and no further. The first thing that is not there makes it bad; from then on it
// gives zeros and nothing, so that a caller may check once at the end, or before it uses a length.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> in) : in_(in) {}

  template <typename T>
  T number() {
    static_assert(std::is_integral_v<T> && !std::is_same_v<T, bool>);
    T value = 0;
    const auto data = bytes(sizeof(T));
    if (ok_) std::memcpy(&value, data.data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> bytes(std::uint64_t count) {
    if (!ok_ || count > in_.size()) {
      ok_ = false;
      return {};
    }
    const auto data = in_.first(count);
    in_ = in_.subspan(count);
    return data;
  }
  std::string string(std::size_t longest) {
    const auto length = number<std::uint32_t>();
    if (length > longest) ok_ = false;
    const auto data = bytes(length);
    return ok_ ? std::string(reinterpret_cast<const char*>(data.data()), data.size()) : std::string();
  }
  // A number of things of at least `each` bytes that follow; bad where they cannot, so that nobody reserves memory for
  // what is not there.
  std::uint32_t count(std::size_t each, std::uint32_t most) {
    const auto value = number<std::uint32_t>();
    if (value > most || std::uint64_t{value} * each > in_.size()) ok_ = false;
    return ok_ ? value : 0;
  }
  void spoil() { ok_ = false; }
  bool ok() const { return ok_; }
  std::size_t left() const { return ok_ ? in_.size() : 0; }

 private:
  std::span<const std::byte> in_;
  bool ok_ = true;
};

}  // namespace rouse
