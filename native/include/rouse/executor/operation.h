// One operator with its arguments' plan: decoded from a TEMPLATE once, checked, and run any number of times.
#pragma once

#include <ATen/core/TensorBase.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rouse/base/status.h"
#include "rouse/executor/generators.h"
#include "rouse/quantized/quantization.h"
#include "rouse/wire/format.h"
#include "rouse/wire/words.h"

namespace rouse::executor {

// What a tensor looks like, its storage apart. Sizes and strides in elements.
struct TensorSpec {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::uint8_t flags = 0;  // wire::kConjugate and others
  std::int64_t offset = 0;
  c10::SmallVector<std::int64_t, 5> sizes;
  c10::SmallVector<std::int64_t, 5> strides;
  quantized::QuantizationPtr quantization;  // Null: plain numbers.
  // Bytes that a storage must have for this tensor to lie inside it.
  std::uint64_t required_bytes = 0;

  bool describes(const at::TensorBase& tensor) const;
  std::string describe() const;
};

// Where a result's storage comes from.
enum class Origin : std::uint8_t {
  kNew,        // A storage of its own.
  kSlot,       // The storage of argument slot `index`.
  kShared,     // The new storage number `index` of this call.
  kUndefined,  // Not a defined tensor.
};

struct ResultSpec {
  Origin origin = Origin::kNew;
  std::uint32_t index = 0;
  TensorSpec spec;
  std::uint64_t storage_bytes = 0;
};

// A tensor argument. Written: the operator's schema says that it changes it.
struct Slot {
  TensorSpec spec;
  bool written = false;
};

// An operator that reads a table by rows: which of its slots is the table, and which names the rows.
struct Gather {
  std::uint32_t table = 0;
  std::uint32_t rows = 0;
};

// A tensor over `storage` that looks as `spec` says. The storage must have spec.required_bytes.
at::Tensor make_tensor(const c10::Storage& storage, const TensorSpec& spec);

class Objects;

class Operation {
 public:
  // `message` is a whole TEMPLATE that no other process can change; it will run on `device`, where its arguments lie,
  // and may name `objects`. kInvalid: malformed; kUnsupported: an operator that this process does not have, or does not
  // run for others.
  static Result<std::shared_ptr<Operation>> decode(std::span<const std::byte> message,
                                                   c10::Device device = c10::Device(c10::DeviceType::CPU),
                                                   const Objects* objects = nullptr);
  // The TEMPLATE that decode() takes, with the results as known now: for tapes.
  std::vector<std::byte> encode(std::uint32_t number) const;

  // "aten::add.out"
  const std::string& name() const { return name_; }
  const std::vector<Slot>& slots() const { return slots_; }
  // Flattened over tuples and lists (values left out); none while unknown. `new_storages` of them have a storage of
  // their own.
  const std::optional<std::vector<ResultSpec>>& results() const { return results_; }
  std::uint32_t new_storages() const { return new_storages_; }
  bool draws_random() const { return draws_random_; }
  // Where it reads just some rows of a tensor.
  const std::optional<Gather>& gather() const { return gather_; }
  // It returns something that is not a tensor.
  bool has_values() const { return has_values_; }
  // The session's objects among its arguments, by number.
  const std::vector<std::uint32_t>& objects() const { return objects_; }
  // Its results' shapes depend on data (at::Tag::dynamic_output_shape and the like).
  bool data_dependent() const { return data_dependent_; }

  // The arguments on `stack`, with `tensors[i]` in slot i. One tensor a slot.
  void push(std::span<const at::Tensor> tensors, Generators& generators, torch::jit::Stack& stack) const;
  // Runs what push() left on the stack; the results replace it. What a kernel throws becomes kFailed, its text
  // beginning with the exception's class as Python names it ("IndexError: ...").
  Status run(torch::jit::Stack& stack, Generators& generators) const;
  // The tensors among results, tuples and lists flattened (undefined ones too).
  static void flatten(const torch::jit::Stack& stack, std::vector<at::Tensor>& tensors);
  // Compares what run() returned with results(): dtype, sizes, strides, offset, and whose storage each one has.
  Status check(std::span<const at::Tensor> slots, std::span<const at::Tensor> returned) const;

  // Result specs of what run() returned. kUnsupported where a result cannot be described (sparse, nested, ...).
  Result<std::vector<ResultSpec>> observe(std::span<const at::Tensor> slots,
                                          std::span<const at::Tensor> returned) const;
  // From now on check() compares with these.
  void keep(std::vector<ResultSpec> results);
  // What run() left on the stack, as the items of META: `results` are observe()'s.
  static Status describe(const torch::jit::Stack& stack, std::span<const ResultSpec> results, wire::Writer& items);

 private:
  explicit Operation(c10::Device device) : device_(device) {}
  friend class OperationDecoder;

  const c10::Device device_;

  std::string name_, overload_;
  std::optional<c10::OperatorHandle> handle_;
  std::vector<std::byte> arguments_;  // As they came: encode() and the prototypes of the stack.
  torch::jit::Stack prototype_;       // Arguments, with undefined tensors where slots go.
  std::vector<Slot> slots_;
  std::optional<std::vector<ResultSpec>> results_;
  std::uint32_t new_storages_ = 0;
  bool draws_random_ = false;
  bool for_derivative_ = false;
  bool data_dependent_ = false;
  // Where each slot goes: an argument, and -1 or an element of its list.
  struct Place {
    std::uint16_t argument;
    std::int32_t element;
  };
  std::vector<Place> places_;
  std::vector<std::uint16_t> lists_;  // Arguments that are lists of tensors: made anew for each call.
  // Arguments that are generators, and which of the session's.
  std::vector<std::pair<std::uint16_t, std::uint32_t>> generators_;
  bool has_values_ = false;
  std::vector<std::uint32_t> objects_;
  std::optional<Gather> gather_;
};

}  // namespace rouse::executor
