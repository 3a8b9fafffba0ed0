#include "rouse/serve/protobuf.h"

#include <bit>
#include <cstring>
#include <limits>

namespace rouse::serve {

namespace {

constexpr int kMaxVarintBytes = 10;
static_assert(std::endian::native == std::endian::little, "fixed-width fields are read as they lie");

}  // namespace

bool ProtoReader::fault(const std::string& text) {
  if (status_.ok()) status_ = Status(Code::kInvalid, std::string(what_) + ": " + text);
  return false;
}

bool ProtoReader::read_varint(uint64_t& value) {
  value = 0;
  for (int count = 0; count < kMaxVarintBytes; ++count) {
    if (position_ == bytes_.size()) return fault("cut off within a number");
    const auto byte = static_cast<uint8_t>(bytes_[position_++]);
    value |= static_cast<uint64_t>(byte & 0x7F) << (7 * count);
    if (byte < 0x80) return true;
  }
  return fault("a number is longer than ten bytes");
}

bool ProtoReader::next() {
  if (!status_.ok() || position_ == bytes_.size()) return false;
  uint64_t tag = 0;
  if (!read_varint(tag)) return false;
  if (tag > std::numeric_limits<uint32_t>::max() || tag >> 3 == 0) return fault("a tag names no field");
  field_ = static_cast<uint32_t>(tag >> 3);
  wire_ = static_cast<Wire>(tag & 7);
  uint64_t length = 0;
  switch (wire_) {
    case Wire::kVarint:
      return read_varint(number_);
    case Wire::kFixed64:
      length = 8;
      break;
    case Wire::kFixed32:
      length = 4;
      break;
    case Wire::kBytes:
      if (!read_varint(length)) return false;
      break;
    default:
      return fault("wire type " + std::to_string(tag & 7) + " in field " + std::to_string(field_));
  }
  if (length > bytes_.size() - position_) {
    return fault("field " + std::to_string(field_) + " runs past the end of the message");
  }
  value_ = bytes_.subspan(position_, length);
  position_ += length;
  return true;
}

bool ProtoReader::expect(Wire wire) {
  if (!status_.ok()) return false;
  if (wire_ == wire) return true;
  return fault("field " + std::to_string(field_) + " has wire type " + std::to_string(static_cast<int>(wire_)) +
               " instead of " + std::to_string(static_cast<int>(wire)));
}

uint64_t ProtoReader::varint() { return expect(Wire::kVarint) ? number_ : 0; }

uint32_t ProtoReader::varint32() {
  const uint64_t value = varint();
  if (value <= std::numeric_limits<uint32_t>::max()) return static_cast<uint32_t>(value);
  fault("field " + std::to_string(field_) + " has a number of more than 32 bits");
  return 0;
}

double ProtoReader::number() {
  if (!expect(Wire::kFixed64)) return 0;
  double value = 0;
  std::memcpy(&value, value_.data(), sizeof(value));
  return value;
}

Bytes ProtoReader::bytes() { return expect(Wire::kBytes) ? value_ : Bytes{}; }

void ProtoReader::varints(std::vector<uint64_t>& into, size_t most) {
  if (!status_.ok()) return;
  if (wire_ == Wire::kVarint) {
    into.push_back(number_);
  } else if (expect(Wire::kBytes)) {
    ProtoReader packed(value_, what_);
    uint64_t value = 0;
    while (packed.position_ < packed.bytes_.size() && into.size() <= most) {
      if (!packed.read_varint(value)) {
        status_ = packed.status_;
        return;
      }
      into.push_back(value);
    }
  }
  if (into.size() > most) {
    fault("field " + std::to_string(field_) + " has more than " + std::to_string(most) + " numbers");
    into.clear();
  }
}

void ProtoWriter::put(uint64_t value) {
  while (value >= 0x80) {
    out_.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out_.push_back(static_cast<char>(value));
}

ProtoWriter& ProtoWriter::varint(uint32_t field, uint64_t value) {
  if (value != 0) {
    tag(field, 0);
    put(value);
  }
  return *this;
}

ProtoWriter& ProtoWriter::number(uint32_t field, double value) {
  if (value != 0) {
    tag(field, 1);
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return *this;
}

ProtoWriter& ProtoWriter::text(uint32_t field, std::string_view value) {
  return value.empty() ? *this : element(field, value);
}

ProtoWriter& ProtoWriter::element(uint32_t field, std::string_view value) {
  tag(field, 2);
  put(value.size());
  out_.append(value);
  return *this;
}

ProtoWriter& ProtoWriter::packed(uint32_t field, std::span<const int64_t> values) {
  if (values.empty()) return *this;
  ProtoWriter inner;
  for (const int64_t value : values) inner.put(static_cast<uint64_t>(value));
  return element(field, inner.out());
}

}  // namespace rouse::serve
