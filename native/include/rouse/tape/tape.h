// A tape: what one request did on the device, as data. No PyTorch here: the operators are TEMPLATE messages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rouse/base/status.h"
#include "rouse/tape/plan.h"

namespace rouse::tape {

// Bounds of a tape; what is larger is not taped.
inline constexpr std::uint32_t kMaxTemplates = 1u << 14;
inline constexpr std::uint32_t kMaxInstructions = 1u << 18;
inline constexpr std::uint32_t kMaxPlaces = 1u << 18;
inline constexpr std::uint32_t kMaxOperands = 1u << 21;
inline constexpr std::uint32_t kMaxOutputs = 1u << 10;
inline constexpr std::uint32_t kMaxInputs = 1u << 10;
inline constexpr std::uint32_t kMaxTemplateBytes = 1u << 16;
inline constexpr std::uint64_t kMaxBlobBytes = 64u << 20;
// A function that reads more than this back inside a request does not branch on it: it computes with it.
inline constexpr std::uint64_t kMaxGuardBytes = 4096;

// What a storage is to the request.
enum class Class : std::uint8_t {
  kWeight = 0,    // `value`: its address, less the base of the model's range
  kInput = 1,     // `value`: which input
  kHeld = 2,      // `value`: its name in the session, which keeps it between requests. Not in files.
  kConstant = 3,  // `value`: which blob. Kept from before the request, never changed by it.
  kScratch = 4,   // made inside the request, by CREATE or a call
};

struct Place {
  Class kind = Class::kScratch;
  bool written = false;  // some instruction changes it
  std::uint64_t value = 0;
  std::uint64_t bytes = 0;  // of the storage; of a weight, what the request uses from its address on
  bool operator==(const Place&) const = default;
};

enum class Op : std::uint8_t {
  kCall = 0,    // `number`: template; operands: `slots` places, then `results` places that it makes
  kCreate = 1,  // operand: the place made; `count`: bytes
  kResize = 2,  // operand: place; `count`: bytes
  kWrite = 3,   // operand: place; `offset`; `number`: blob
  kGuard = 4,   // operand: place; `offset`; `number`: blob that the bytes there have to equal
  kValue = 5,   // `number`: blob that equals the items of what the call before returned to Python
  kSeed = 6,    // `offset`: the seed of the session's random numbers
};

struct Instruction {
  Op op = Op::kCall;
  std::uint16_t slots = 0, results = 0;
  std::uint32_t number = 0;
  std::uint32_t first = 0;  // operand
  std::uint64_t offset = 0, count = 0;
  bool operator==(const Instruction&) const = default;
};

// A tensor over a place. Sizes, strides and offset in elements; dtype is c10::ScalarType.
struct Output {
  std::uint32_t place = 0;
  std::uint8_t dtype = 0, flags = 0;
  std::int64_t offset = 0;
  std::vector<std::int64_t> sizes, strides;
  bool operator==(const Output&) const = default;
};

// Where a tape may be replayed.
struct Origin {
  std::string torch_version;  // as "2.13.0"
  std::string device;         // "cpu", "cuda:sm_90"
  std::string layout;         // digest of the model's layout in its range; empty where it names no weights
  std::array<std::uint64_t, 2> signature{};
  std::uint64_t model_base = 0, model_bytes = 0;
  std::uint8_t default_dtype = 6;  // c10::ScalarType, as it was while recording
  bool operator==(const Origin&) const = default;
};

// Whether a tape of `made` may be replayed where everything is as `here` says; signatures apart. MISMATCH says what
// differs.
Status fits(const Origin& made, const Origin& here);

struct Tape {
  Origin origin;
  std::vector<std::vector<std::byte>> templates;  // TEMPLATE messages (docs/native.md)
  std::vector<Place> places;
  std::vector<Instruction> instructions;
  std::vector<std::uint32_t> operands;
  std::vector<std::vector<std::byte>> blobs;
  std::vector<Output> outputs;
  std::uint32_t inputs = 0;
  // Blocks of a replay on one thread, and where they lie; empty while no replay was observed.
  std::vector<Lifetime> lifetimes;
  Plan plan;
  bool operator==(const Tape&) const = default;
};

// Whether every number in it names something, every place is made before it is used and made once, and what it reads
// and writes by itself lies inside. Templates are not decoded here. INVALID says what does not hold.
Status check(const Tape& tape);

// The instruction after which nothing uses a place any more, one a place: an index of an instruction, kNeverUsed, or
// kOutlives for outputs and for what lives longer than a request.
inline constexpr std::uint32_t kNeverUsed = ~std::uint32_t{0};
inline constexpr std::uint32_t kOutlives = ~std::uint32_t{0} - 1;
std::vector<std::uint32_t> last_uses(const Tape& tape);

// What a file holds: a tape, or what one request did and nothing was compared with yet (tape/candidates.h).
enum class File : std::uint32_t { kTape = 0, kCandidate = 1 };

// The bytes of a file, with a version and a checksum. INVALID where the tape does not hold (check) or names storages of
// this session only.
Result<std::vector<std::byte>> save(const Tape& tape, File what = File::kTape);
// The tape in a file's bytes, checked. MISMATCH: another version, or damaged, or it holds something else; INVALID: what
// it says cannot be.
Result<Tape> load(std::span<const std::byte> file, File what = File::kTape);
// The checksum in the head of a file that save() made.
std::uint64_t checksum_of(std::span<const std::byte> file);
// Sets the length and checksum in a file's head to what follows it: for tests of what lies behind them.
void repair(std::vector<std::byte>& file);

}  // namespace rouse::tape
