// What the client knows of each operator: its schema's plan, and the templates it was called with.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "rouse/quantized/quantization.h"
#include "rouse/wire/format.h"
#include "rouse/wire/words.h"

namespace rouse::redirect {

// One result tensor, as an executor described it.
struct Described {
  wire::Tag tag = wire::Tag::kNew;  // kNew, kAlias, kShared, kUndefined
  std::uint32_t index = 0;
  std::uint8_t flags = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::int64_t offset = 0;
  std::uint64_t storage_bytes = 0;
  c10::SmallVector<std::int64_t, 5> sizes;
  c10::SmallVector<std::int64_t, 5> strides;
  quantized::QuantizationPtr quantization;  // Null: plain numbers.
};

// One result of an operator: a tensor, a list of tensors, or a value.
struct Outcome {
  enum class Kind : std::uint8_t { kTensor, kList, kNone, kBool, kInt, kDouble, kComplex } kind = Kind::kTensor;
  std::vector<Described> tensors;
  double real = 0, imaginary = 0;
  std::int64_t integer = 0;
};

struct Outcomes {
  std::vector<Outcome> list;
  std::uint32_t made = 0;
  // Items as META has them. False: malformed.
  bool read(std::span<const std::byte> items);
};

inline constexpr std::uint32_t kUnsent = 0xffff'ffffu;

struct Template {
  std::vector<std::uint64_t> key;  // The argument items.
  std::uint32_t number = kUnsent;
  bool known = false;  // `outcomes` holds for each call.
  Outcomes outcomes;
  std::vector<std::byte> items;  // `outcomes` as it came, to be sent and saved.
};

struct Operator {
  explicit Operator(const c10::OperatorHandle& handle);
  c10::OperatorHandle handle;
  std::string name, overload;
  // For each return, the argument that it is (in-place and out variants), or -1.
  std::vector<int> returns_argument;
  std::vector<bool> return_is_list;
  bool data_dependent = false;  // Its results' shapes can differ between calls of one template.
  bool masks = false;           // They do only where an index is a mask.
  bool has_values = false;
  bool returns_object = false;
  bool no_returns = false;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<Template>> templates;

  Template* find(std::uint64_t hash, std::span<const std::uint64_t> key) {
    const auto [from, to] = templates.equal_range(hash);
    for (auto each = from; each != to; ++each) {
      const auto& have = each->second->key;
      if (have.size() == key.size() && std::equal(have.begin(), have.end(), key.begin())) return each->second.get();
    }
    return nullptr;
  }
};

std::uint64_t hash_of(std::span<const std::uint64_t> words);

// All operators that were called; guarded by the client's lock.
class Operators {
 public:
  static Operators& get();
  Operator& of(const c10::OperatorHandle& handle);
  // A number for a template that is sent for the first time. There have to be some left.
  std::uint32_t assign(Operator& operation, Template& made);
  bool exhausted() const { return sent_.size() >= wire::kMaxTemplates; }
  // The executor knows no template (any more).
  void forget_numbers();
  std::size_t count() const { return count_; }
  Template& add(Operator& operation, std::uint64_t hash, std::span<const std::uint64_t> key);
  // Results that an earlier process learnt, or an earlier call whose arguments differ in numbers only; or nullptr.
  const Outcomes* expected(Operator& operation, std::span<const std::uint64_t> key, std::vector<std::byte>& items);
  void learnt(Operator& operation, std::span<const std::uint64_t> key, std::span<const std::byte> items);
  // The executor found that this template's results differ between calls.
  void distrust(std::uint32_t number);

  std::string save() const;
  // What save() gave. Returns how many entries were taken; -1: not of this version or damaged.
  std::int64_t load(const std::string& bytes);

 private:
  struct Shape {
    Outcomes outcomes;
    std::vector<std::byte> items;
  };
  static std::string shape_key(const Operator& operation, std::span<const std::uint64_t> key);
  std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<Operator>> operators_;
  std::unordered_map<std::string, Shape> shapes_;
  std::vector<std::pair<Operator*, Template*>> sent_;
  std::size_t count_ = 0;
};

}  // namespace rouse::redirect
