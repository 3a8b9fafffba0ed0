// The messages in the rings (docs/native.md, "Messages"): fixed heads, followed by words and items.
//
// Little-endian. A message's size is a multiple of 8 bytes and at most kMaxMessageBytes; every item starts on a word.
// Both directions are hostile until checked: read them with wire/reader.h, from memory that the other side cannot
// change.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rouse::wire {

inline constexpr std::uint32_t kVersion = 1;
// Names of storages at or above it are addresses inside the ranges of models; below it they are numbers.
inline constexpr std::uint64_t kModelBase = 0x5000'0000'0000ull;
inline constexpr std::uint32_t kMaxMessageBytes = 1u << 20;
// Bytes of data in one WRITE, READ or DATA; larger transfers are several messages.
inline constexpr std::uint32_t kMaxDataBytes = 1u << 19;
// Numbers of storages are small, dense and used again after FREE: an executor keeps them in an array.
inline constexpr std::uint64_t kMaxStorages = 1u << 22;
inline constexpr std::uint32_t kMaxTemplates = 1u << 17;
inline constexpr std::uint32_t kMaxGenerators = 1u << 10;
// Objects that a session has at one time.
inline constexpr std::uint32_t kMaxObjects = 1u << 16;
inline constexpr std::uint32_t kMaxDimensions = 64;
// Tensors in one call, lists' elements counted.
inline constexpr std::uint32_t kMaxSlots = 4096;
inline constexpr std::uint32_t kMaxListLength = 1u << 16;
inline constexpr std::uint32_t kAllTemplates = 0xffff'ffffu;

enum class Kind : std::uint16_t {
  kNone = 0,
  // To the executor.
  kTemplate = 1,
  kDropTemplate = 2,
  kCall = 3,
  kCreate = 4,
  kResize = 5,
  kFree = 6,
  kWrite = 7,
  kRead = 8,
  kSync = 9,
  kSeed = 10,
  kBegin = 11,
  kEnd = 12,
  kReplay = 13,
  kSetting = 14,
  kObject = 15,
  kDropObject = 16,
  // To the client.
  kData = 64,
  kMeta = 65,
  kDone = 66,
  kError = 67,
  kReplayed = 68,
};

struct Header {
  std::uint32_t size;  // Of the whole message, this head included.
  std::uint16_t kind;
  std::uint16_t flags;
};
static_assert(sizeof(Header) == 8);

// TEMPLATE: then the operator's name and its overload (padded to words, one after the other), then `argument_bytes`
// of items, then `result_bytes` of result items. No result items: what it returns is not known yet.
struct Template {
  Header header;
  std::uint32_t number;
  std::uint16_t name_bytes;
  std::uint16_t overload_bytes;
  std::uint32_t argument_bytes;
  std::uint32_t result_bytes;
};
static_assert(sizeof(Template) == 24);

// DROP_TEMPLATE: `number` or kAllTemplates.
struct DropTemplate {
  Header header;
  std::uint32_t number;
  std::uint32_t reserved;
};
static_assert(sizeof(DropTemplate) == 16);

// CALL: then `slots` names (one a tensor argument, in order), then `results` names (one a new storage, in order).
// With kCallLearn it carries one result name, the first of as many consecutive ones as the call makes, and META
// follows.
struct Call {
  Header header;
  std::uint32_t template_number;
  std::uint16_t slots;
  std::uint16_t results;
};
static_assert(sizeof(Call) == 16);
inline constexpr std::uint16_t kCallLearn = 1;  // Answer with META.
inline constexpr std::uint16_t kCallKeep = 2;   // What META says holds for all later calls of this template.

// CREATE and RESIZE. CREATE of a name at or above kModelBase binds an address of a mapped range instead.
struct Create {
  Header header;
  std::uint64_t name;
  std::uint64_t bytes;
};
static_assert(sizeof(Create) == 24);

// FREE: the head, then names to the message's end.

// WRITE: then `count` bytes, padded to a word. READ: answered by DATA.
struct Span {
  Header header;
  std::uint64_t name;
  std::uint64_t offset;
  std::uint64_t count;
};
static_assert(sizeof(Span) == 32);

// SYNC, DONE: the token comes back.
struct Sync {
  Header header;
  std::uint64_t token;
};
static_assert(sizeof(Sync) == 16);

// SEED: what is done to generator `generator` (0 is the session's own). kState carries `count` bytes of state after the
// head; kReadState is answered by DATA.
enum class SeedAction : std::uint32_t { kSeed = 0, kState = 1, kReadState = 2, kDrop = 3 };
struct Seed {
  Header header;
  std::uint32_t generator;
  std::uint32_t action;
  std::uint64_t value;  // The seed, or the count of bytes.
};
static_assert(sizeof(Seed) == 24);

// SETTING: what of the client's global state changes what operators do.
enum class SettingKey : std::uint32_t { kDefaultDtype = 0, kDeterministic = 1, kGradMode = 2 };
struct Setting {
  Header header;
  std::uint32_t key;
  std::uint32_t reserved;
  std::uint64_t value;
};
static_assert(sizeof(Setting) == 24);

// OBJECT: an object that operators take, such as packed weights, made anew by its class from its state. Then the
// class's name and that of the implementation that the client has (padded to words, one after the other), then
// `state_bytes` of items (numbered as slots are), then `slots` names. Numbers are not used again.
struct Object {
  Header header;
  std::uint32_t number;
  std::uint16_t class_bytes;
  std::uint16_t implementation_bytes;
  std::uint32_t state_bytes;
  std::uint32_t slots;
};
static_assert(sizeof(Object) == 24);

// DROP_OBJECT: with the templates that name it.
struct DropObject {
  Header header;
  std::uint32_t number;
  std::uint32_t reserved;
};
static_assert(sizeof(DropObject) == 16);

// BEGIN: then `inputs` names. `signature` is a digest of the inputs' dtypes and shapes, made by the client.
struct Begin {
  Header header;
  std::uint64_t request;
  std::uint64_t signature[2];
  std::uint32_t inputs;
  std::uint32_t reserved;
};
static_assert(sizeof(Begin) == 40);

// END: then for each output its storage's name and a tensor item.
struct End {
  Header header;
  std::uint64_t request;
  std::uint32_t outputs;
  std::uint32_t reserved;
};
static_assert(sizeof(End) == 24);

// REPLAY: then `inputs` names, then `outputs` names for the outputs' storages.
struct Replay {
  Header header;
  std::uint64_t tape;
  std::uint32_t inputs;
  std::uint32_t outputs;
};
static_assert(sizeof(Replay) == 24);

// DATA: then `count` bytes, padded to a word.
struct Data {
  Header header;
  std::uint64_t name;
  std::uint64_t offset;
  std::uint64_t count;
};
static_assert(sizeof(Data) == 32);

// META: then `result_bytes` of result items. `made` new storages took consecutive names.
struct Meta {
  Header header;
  std::uint32_t made;
  std::uint32_t result_bytes;
};
static_assert(sizeof(Meta) == 16);

// ERROR: then the operator's name and the text, each padded to words.
struct Error {
  Header header;
  std::uint32_t code;            // rouse::Code
  std::uint32_t operator_bytes;  // 0: no operator was involved.
  std::uint32_t text_bytes;
  std::uint32_t template_number;
  std::uint64_t sequence;  // Which message of the session failed, counted from 1.
};
static_assert(sizeof(Error) == 32);
inline constexpr std::uint16_t kErrorEnds = 1;  // The session is over: the client broke the protocol.

// Items: one word, then what the tag says. The same items are arguments, results and values.
enum class Tag : std::uint8_t {
  kNone = 0,
  kTensor = 1,       // {dtype, flags, dimensions}; offset, sizes, strides (elements): the next slot. `count`: which
                     // earlier slot shares its storage, from 1, or 0. With kQuantized its quantisation comes after the
                     // strides (quantized/quantization.h)
  kUndefined = 2,    // A tensor argument or result that is not defined.
  kNumber = 3,       // A 0-d tensor by value {dtype, flags}; two words
  kInt = 4,          // one word
  kDouble = 5,       // one word
  kBool = 6,         // count is 0 or 1
  kComplex = 7,      // two words
  kString = 8,       // count bytes, padded
  kDevice = 9,       // count: 0 the device, 1 the host's CPU
  kGenerator = 10,   // count: its number
  kIntList = 11,     // count words
  kDoubleList = 12,  // count words
  kBoolList = 13,    // count words
  kList = 14,        // count items
  kNew = 15,         // as kTensor, then bytes of its storage after the strides
  kAlias = 16,       // as kNew; `count` is the slot whose storage it shares
  kShared = 17,      // as kNew; `count` is the earlier new storage (in order) that it shares
  kTuple = 18,       // count items, in the state of an object
  kObject = 19,      // count: its number
};

struct Item {
  Tag tag;
  std::uint8_t dtype;  // c10::ScalarType
  std::uint8_t flags;
  std::uint8_t dimensions;
  std::uint32_t count;
};
static_assert(sizeof(Item) == 8);

// Item flags.
inline constexpr std::uint8_t kConjugate = 1;
inline constexpr std::uint8_t kNegative = 2;
inline constexpr std::uint8_t kWrapped = 4;  // A Python number: does not take part in type promotion.
inline constexpr std::uint8_t kQuantized = 8;
// Of a kList in an object's state: all of its elements are tensors, and none can be missing.
inline constexpr std::uint8_t kTensors = 1;

}  // namespace rouse::wire
