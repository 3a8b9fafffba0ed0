// From the bytes of a TEMPLATE to an operator and its arguments, guided by the operator's schema.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "rouse/executor/operation.h"
#include "rouse/wire/words.h"

namespace rouse::executor {

// Sets spec.required_bytes: up to the end of the last element. False: overflow or negative numbers.
bool required_bytes(TensorSpec& spec);
// Reads what follows the first word of the item of a tensor on `device`. False: malformed, or not within bounds.
bool read_spec(wire::Reader& reader, const wire::Item& item, c10::Device device, TensorSpec& spec);
void write_spec(wire::Writer& items, wire::Tag tag, std::uint32_t count, const TensorSpec& spec);
bool read_results(wire::Reader& reader, std::size_t slots, c10::Device device, std::vector<ResultSpec>& results);
void write_result(wire::Writer& items, const ResultSpec& result);

class OperationDecoder {
 public:
  static Result<std::shared_ptr<Operation>> decode(std::span<const std::byte> message, c10::Device device,
                                                   const Objects* objects);

 private:
  OperationDecoder(Operation& operation, wire::Reader reader, const Objects* objects)
      : operation_(operation), reader_(reader), objects_(objects) {}
  Status arguments();
  // The slot of an argument that is one tensor.
  std::optional<std::uint32_t> slot_of(std::string_view argument) const;
  void find_gather();
  void find_undeclared_writes();
  Status argument(const c10::TypePtr& type, const c10::Argument& schema, c10::IValue& value);
  Status list(const c10::TypePtr& element, const c10::Argument& schema, const wire::Item& item, c10::IValue& value);
  Status tensor(const wire::Item& item, const c10::Argument& schema, std::int32_t element, at::Tensor& value);
  Status malformed(const std::string& what) const;

  Operation& operation_;
  wire::Reader reader_;
  const Objects* objects_;
  std::uint16_t index_ = 0;
};

}  // namespace rouse::executor
