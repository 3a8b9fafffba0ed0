// Protocol Buffers' wire format, as far as the contracts of the executor need it: proto3, no groups.
// A message is read where it lies, without a copy; nothing that it says is believed before it is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rouse/base/status.h"

namespace rouse::serve {

using Bytes = std::span<const std::byte>;

inline Bytes as_bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }
inline std::string_view as_text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// Walks the fields of one message:
//
//   while (reader.next()) switch (reader.field()) { case 1: id = reader.text(); break; … }
//   ROUSE_RETURN_IF_ERROR(reader.status());
//
// The first fault ends the walk and stays in `status()`; values asked for after it are empty. Unknown fields are passed
// over. A field that has another type than asked for is a fault.
class ProtoReader {
 public:
  // `what` names the message in errors; it must outlive the reader.
  ProtoReader(Bytes bytes, const char* what) : bytes_(bytes), what_(what) {}

  bool next();
  uint32_t field() const { return field_; }
  const Status& status() const { return status_; }

  uint64_t varint();
  uint32_t varint32();  // A fault where the number is larger.
  bool boolean() { return varint() != 0; }
  double number();
  Bytes bytes();
  std::string_view text() { return as_text(bytes()); }
  // Adds one number, or all of a packed field; a fault where there would be more than `most`.
  void varints(std::vector<uint64_t>& into, size_t most);

 private:
  enum class Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  bool fault(const std::string& text);
  bool expect(Wire wire);
  bool read_varint(uint64_t& value);

  Bytes bytes_;
  const char* what_;
  size_t position_ = 0;
  uint32_t field_ = 0;
  Wire wire_ = Wire::kVarint;
  uint64_t number_ = 0;
  Bytes value_;
  Status status_;
};

// Builds one message. Zero, false and empty values are left out, as proto3 does.
class ProtoWriter {
 public:
  ProtoWriter& varint(uint32_t field, uint64_t value);
  ProtoWriter& number(uint32_t field, double value);
  ProtoWriter& text(uint32_t field, std::string_view value);
  // A nested message, or an element of a repeated field: written even where it is empty.
  ProtoWriter& element(uint32_t field, std::string_view value);
  ProtoWriter& packed(uint32_t field, std::span<const int64_t> values);

  const std::string& out() const& { return out_; }
  std::string&& out() && { return std::move(out_); }
  void reserve(size_t size) { out_.reserve(size); }

 private:
  void put(uint64_t value);
  void tag(uint32_t field, uint32_t wire) { put(static_cast<uint64_t>(field) << 3 | wire); }

  std::string out_;
};

}  // namespace rouse::serve
