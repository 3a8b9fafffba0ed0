#include <algorithm>
#include <string>

#include "rouse/base/bytes.h"
#include "rouse/tape/tape.h"

namespace rouse::tape {
namespace {

constexpr std::uint64_t kMagic = 0x1a45504154534f52;  // "ROSTAPE\x1a"
constexpr std::uint32_t kVersion = 1;
// Magic, version, what it holds, length, checksum.
constexpr std::size_t kHeadBytes = 32;
constexpr std::size_t kLongestName = 128;
constexpr std::uint32_t kMaxDimensions = 64;

// FNV-1a over words of 8 bytes: against damage, not against malice, which check() is for.
std::uint64_t checksum(std::span<const std::byte> data) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (std::size_t at = 0; at < data.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data() + at, std::min<std::size_t>(8, data.size() - at));
    hash = (hash ^ word) * 0x100000001b3;
    hash ^= hash >> 29;  // the multiplication moves bits up only
  }
  return hash;
}

void write(ByteWriter& out, const Origin& origin) {
  out.string(origin.torch_version);
  out.string(origin.device);
  out.string(origin.layout);
  for (auto word : origin.signature) out.number(word);
  out.number(origin.model_base);
  out.number(origin.model_bytes);
  out.number(origin.default_dtype);
}

Origin read_origin(ByteReader& in) {
  Origin origin;
  origin.torch_version = in.string(kLongestName);
  origin.device = in.string(kLongestName);
  origin.layout = in.string(kLongestName);
  for (auto& word : origin.signature) word = in.number<std::uint64_t>();
  origin.model_base = in.number<std::uint64_t>();
  origin.model_bytes = in.number<std::uint64_t>();
  origin.default_dtype = in.number<std::uint8_t>();
  return origin;
}

void write(ByteWriter& out, const std::vector<std::vector<std::byte>>& pieces) {
  out.number(static_cast<std::uint32_t>(pieces.size()));
  for (const auto& piece : pieces) {
    out.number(static_cast<std::uint32_t>(piece.size()));
    out.bytes(piece);
  }
}

std::vector<std::vector<std::byte>> read_pieces(ByteReader& in, std::uint32_t most, std::uint64_t largest) {
  std::vector<std::vector<std::byte>> pieces(in.count(4, most));
  for (auto& piece : pieces) {
    const auto size = in.number<std::uint32_t>();
    if (size > largest) in.spoil();
    const auto data = in.bytes(size);
    piece.assign(data.begin(), data.end());
  }
  return pieces;
}

void write(ByteWriter& out, const Output& output) {
  out.number(output.place);
  out.number(output.dtype);
  out.number(output.flags);
  out.number(output.offset);
  out.number(static_cast<std::uint32_t>(output.sizes.size()));
  for (auto size : output.sizes) out.number(size);
  for (auto stride : output.strides) out.number(stride);
}

Output read_output(ByteReader& in) {
  Output output;
  output.place = in.number<std::uint32_t>();
  output.dtype = in.number<std::uint8_t>();
  output.flags = in.number<std::uint8_t>();
  output.offset = in.number<std::int64_t>();
  const auto dimensions = in.count(16, kMaxDimensions);
  for (std::uint32_t i = 0; i < dimensions; ++i) output.sizes.push_back(in.number<std::int64_t>());
  for (std::uint32_t i = 0; i < dimensions; ++i) output.strides.push_back(in.number<std::int64_t>());
  return output;
}

void write_body(ByteWriter& out, const Tape& tape) {
  write(out, tape.origin);
  write(out, tape.templates);
  out.number(static_cast<std::uint32_t>(tape.places.size()));
  for (const Place& place : tape.places) {
    out.number(static_cast<std::uint8_t>(place.kind));
    out.number(static_cast<std::uint8_t>(place.written));
    out.number(place.value);
    out.number(place.bytes);
  }
  out.number(static_cast<std::uint32_t>(tape.instructions.size()));
  for (const Instruction& it : tape.instructions) {
    out.number(static_cast<std::uint8_t>(it.op));
    out.number(it.slots);
    out.number(it.results);
    out.number(it.number);
    out.number(it.first);
    out.number(it.offset);
    out.number(it.count);
  }
  out.number(static_cast<std::uint32_t>(tape.operands.size()));
  for (auto operand : tape.operands) out.number(operand);
  write(out, tape.blobs);
  out.number(static_cast<std::uint32_t>(tape.outputs.size()));
  for (const Output& output : tape.outputs) write(out, output);
  out.number(tape.inputs);
  out.number(static_cast<std::uint32_t>(tape.lifetimes.size()));
  for (std::size_t i = 0; i < tape.lifetimes.size(); ++i) {
    out.number(tape.lifetimes[i].bytes);
    out.number(tape.lifetimes[i].from);
    out.number(tape.lifetimes[i].until);
    out.number(tape.plan.offsets[i]);
  }
  out.number(tape.plan.bytes);
}

Tape read_body(ByteReader& in) {
  Tape tape;
  tape.origin = read_origin(in);
  tape.templates = read_pieces(in, kMaxTemplates, kMaxTemplateBytes);
  tape.places.resize(in.count(18, kMaxPlaces));
  for (Place& place : tape.places) {
    const auto kind = in.number<std::uint8_t>(), written = in.number<std::uint8_t>();
    // Class::kHeld names storages of a session that this file was not made in.
    if (kind > std::uint8_t(Class::kScratch) || kind == std::uint8_t(Class::kHeld) || written > 1) in.spoil();
    place.kind = static_cast<Class>(kind);
    place.written = written == 1;
    place.value = in.number<std::uint64_t>();
    place.bytes = in.number<std::uint64_t>();
  }
  tape.instructions.resize(in.count(29, kMaxInstructions));
  for (Instruction& it : tape.instructions) {
    it.op = static_cast<Op>(in.number<std::uint8_t>());
    it.slots = in.number<std::uint16_t>();
    it.results = in.number<std::uint16_t>();
    it.number = in.number<std::uint32_t>();
    it.first = in.number<std::uint32_t>();
    it.offset = in.number<std::uint64_t>();
    it.count = in.number<std::uint64_t>();
  }
  tape.operands.resize(in.count(4, kMaxOperands));
  for (auto& operand : tape.operands) operand = in.number<std::uint32_t>();
  tape.blobs = read_pieces(in, kMaxInstructions + kMaxPlaces, kMaxBlobBytes);
  tape.outputs.resize(in.count(18, kMaxOutputs));
  for (Output& output : tape.outputs) output = read_output(in);
  tape.inputs = in.number<std::uint32_t>();
  const auto blocks = in.count(24, static_cast<std::uint32_t>(kMaxPlanned));
  for (std::uint32_t i = 0; i < blocks; ++i) {
    Lifetime life;
    life.bytes = in.number<std::uint64_t>();
    life.from = in.number<std::uint32_t>();
    life.until = in.number<std::uint32_t>();
    tape.lifetimes.push_back(life);
    tape.plan.offsets.push_back(in.number<std::uint64_t>());
  }
  tape.plan.bytes = in.number<std::uint64_t>();
  return tape;
}

}  // namespace

Result<std::vector<std::byte>> save(const Tape& tape, File what) {
  ROUSE_RETURN_IF_ERROR(check(tape));
  if (tape.lifetimes.size() != tape.plan.offsets.size())
    return Status(Code::kInvalid, "a tape's plan is not of its blocks");
  for (const Place& place : tape.places)
    if (place.kind == Class::kHeld)
      return Status(Code::kInvalid, "a tape that uses storages of its session is not saved: storage " +
                                        std::to_string(place.value) +
                                        " is neither a weight in the model's range nor small and constant");
  ByteWriter body;
  write_body(body, tape);
  const auto bytes = body.take();
  ByteWriter file;
  file.number(kMagic);
  file.number(kVersion);
  file.number(static_cast<std::uint32_t>(what));
  file.number(static_cast<std::uint64_t>(bytes.size()));
  file.number(checksum(bytes));
  file.bytes(bytes);
  return file.take();
}

Result<Tape> load(std::span<const std::byte> file, File what) {
  ByteReader head(file);
  if (head.number<std::uint64_t>() != kMagic) return Status(Code::kMismatch, "not the file of a tape");
  if (const auto version = head.number<std::uint32_t>(); version != kVersion)
    return Status(Code::kMismatch, "a tape of version " + std::to_string(version) + "; this core reads " +
                                       std::to_string(kVersion) + ": record it again");
  const auto holds = head.number<std::uint32_t>();
  const auto size = head.number<std::uint64_t>(), sum = head.number<std::uint64_t>();
  if (head.ok() && holds != static_cast<std::uint32_t>(what))
    return Status(Code::kMismatch, "a file of tapes that holds something else than what it is read for");
  if (!head.ok() || size != head.left())
    return Status(Code::kMismatch, "the file of a tape is cut off, or longer than it says");
  const auto body = head.bytes(size);
  if (checksum(body) != sum) return Status(Code::kMismatch, "the file of a tape is damaged: its checksum differs");
  ByteReader in(body);
  Tape tape = read_body(in);
  if (!in.ok() || in.left() != 0) return Status(Code::kInvalid, "what a tape's file says cannot be");
  ROUSE_RETURN_IF_ERROR(check(tape));
  return tape;
}

std::uint64_t checksum_of(std::span<const std::byte> file) {
  std::uint64_t sum = 0;
  if (file.size() >= kHeadBytes) std::memcpy(&sum, file.data() + 24, sizeof sum);
  return sum;
}

void repair(std::vector<std::byte>& file) {
  if (file.size() < kHeadBytes) return;
  const auto body = std::span<const std::byte>(file).subspan(kHeadBytes);
  const std::uint64_t size = body.size(), sum = checksum(body);
  std::memcpy(file.data() + 16, &size, sizeof size);
  std::memcpy(file.data() + 24, &sum, sizeof sum);
}

}  // namespace rouse::tape
