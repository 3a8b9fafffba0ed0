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
