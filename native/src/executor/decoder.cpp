#include "decoder.h"

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/TensorImpl.h>

#include <array>
#include <bit>
#include <string_view>

#include "objects.h"
#include "specs.h"

namespace rouse::executor {
namespace {

using wire::Item;
using wire::Tag;

// Operators that reach outside the session: files, other processes, memory by address.
constexpr std::string_view kRefused[] = {"aten::from_file", "aten::_pin_memory", "aten::pin_memory",
                                         "aten::_nested_view_from_buffer"};
constexpr std::string_view kRefusedNamespaces[] = {
    "c10d::",  "_c10d_functional::", "prims::",  "profiler::", "inductor::",
    "_test::", "static_runtime::",   "onednn::", "mkldnn::",   "symm_mem::"};

bool refused(std::string_view name) {
  for (const auto other : kRefused) {
    if (name == other) return true;
  }
  for (const auto space : kRefusedNamespaces) {
    if (name.starts_with(space)) return true;
  }
  return false;
}

// PyTorch's kernels look enumerations up in tables, whatever number they are given.
bool enumerated(const c10::Argument& schema, std::uint64_t value) {
  const auto& real = schema.real_type();
  const auto& type = real->kind() == c10::TypeKind::OptionalType ? real->containedType(0) : real;
  switch (type->kind()) {
    case c10::TypeKind::ScalarTypeType:
      return value < static_cast<std::uint64_t>(c10::ScalarType::NumOptions);
    case c10::TypeKind::LayoutType:
      return value < static_cast<std::uint64_t>(c10::Layout::NumOptions);
    case c10::TypeKind::MemoryFormatType:
      return value < static_cast<std::uint64_t>(c10::MemoryFormat::NumOptions);
    default:
      return true;
  }
}

}  // namespace

Status OperationDecoder::malformed(const std::string& what) const {
  return {Code::kInvalid, "template of " + operation_.name_ + ", argument " + std::to_string(index_) + ": " + what};
}

Result<std::shared_ptr<Operation>> OperationDecoder::decode(std::span<const std::byte> message, c10::Device device,
                                                            const Objects* objects) {
  wire::Reader reader(message);
  wire::Template head;
  std::string_view name, overload;
  std::span<const std::byte> arguments, results;
  if (!reader.head(head) || !reader.text(head.name_bytes, name) || !reader.text(head.overload_bytes, overload) ||
      head.argument_bytes % 8 != 0 || !reader.bytes(head.argument_bytes, arguments) ||
      !reader.bytes(head.result_bytes, results) || reader.left() != 0) {
    return Status(Code::kInvalid, "template: its parts do not add up to its size");
  }
  const std::string full = std::string(name) + (overload.empty() ? "" : "." + std::string(overload));
  if (refused(name)) {
    return Status(Code::kUnsupported, full + " is not run for other processes; call it on a CPU tensor");
  }
  auto handle = c10::Dispatcher::singleton().findSchema({std::string(name), std::string(overload)});
  if (!handle) {
    return Status(Code::kUnsupported, full + " is not known to the executor; load the library that registers it there");
  }
  std::shared_ptr<Operation> operation(new Operation(device));
  operation->name_ = full;
  operation->overload_ = std::string(overload);
  operation->handle_ = *handle;
  operation->arguments_.assign(arguments.begin(), arguments.end());
  OperationDecoder decoder(*operation, wire::Reader(operation->arguments_), objects);
  ROUSE_RETURN_IF_ERROR(decoder.arguments());
  if (!results.empty()) {
    wire::Reader items(results);
    std::vector<ResultSpec> specs;
    if (!read_results(items, operation->slots_.size(), device, specs)) {
      return Status(Code::kInvalid, "template of " + full + ": its results are malformed");
    }
    operation->keep(std::move(specs));
  }
  return operation;
}

Status OperationDecoder::arguments() {
  const auto& schema = operation_.handle_->schema();
  for (const auto& argument_schema : schema.arguments()) {
    c10::IValue value;
    ROUSE_RETURN_IF_ERROR(argument(argument_schema.type(), argument_schema, value));
    operation_.prototype_.push_back(std::move(value));
    ++index_;
  }
  if (reader_.left() != 0) return malformed("there are more arguments than the operator has");
  for (const auto& result : schema.returns()) {
    const auto kind = result.type()->kind();
    const bool tensors =
        kind == c10::TypeKind::TensorType ||
        (kind == c10::TypeKind::ListType && result.type()->containedType(0)->kind() == c10::TypeKind::TensorType);
    if (!tensors) operation_.has_values_ = true;
  }
  operation_.draws_random_ = operation_.handle_->hasTag(at::Tag::nondeterministic_seeded);
  for (std::size_t i = 0; i < operation_.prototype_.size(); ++i) {
    // The tag is the operator's, not the call's: attention and recurrent layers draw only where they drop out.
    const auto& value = operation_.prototype_[i];
    const auto& argument = schema.arguments()[i].name();
    if (((argument == "dropout_p" || argument == "dropout") && value.isDouble() && value.toDouble() == 0) ||
        (argument == "train" && value.isBool() && !value.toBool())) {
      operation_.draws_random_ = false;
    }
    // PyTorch tells this kernel by the thread's grad mode whether a derivative follows; the client tells it so.
    if (argument == "train" && operation_.name_ == "aten::mkldnn_rnn_layer") {
      operation_.for_derivative_ = value.isBool() && value.toBool();
    }
  }
  operation_.data_dependent_ = operation_.handle_->hasTag(at::Tag::dynamic_output_shape) ||
                               operation_.handle_->hasTag(at::Tag::data_dependent_output);
  find_gather();
  find_undeclared_writes();
  return {};
}

std::optional<std::uint32_t> OperationDecoder::slot_of(std::string_view argument) const {
  const auto index = operation_.handle_->schema().argumentIndexWithName(argument);
  for (std::uint32_t slot = 0; index && slot < operation_.places_.size(); ++slot) {
    const auto& place = operation_.places_[slot];
    if (place.argument == *index && place.element < 0) return slot;
  }
  return std::nullopt;
}

void OperationDecoder::find_gather() {
  const std::string_view name = operation_.name_;
  std::optional<std::uint32_t> table, rows;
  if (name == "aten::embedding" || name == "aten::embedding.out") {
    table = slot_of("weight");
    rows = slot_of("indices");
  } else if (name == "aten::index_select" || name == "aten::index_select.out") {
    const auto dimension = operation_.handle_->schema().argumentIndexWithName("dim");
    if (!dimension || !operation_.prototype_[*dimension].isInt() || operation_.prototype_[*dimension].toInt() != 0)
      return;
    table = slot_of("self");
    rows = slot_of("index");
  }
  if (table && rows) operation_.gather_ = Gather{*table, *rows};
}

// Batch normalisation updates its running statistics while training; older schemas do not say so.
void OperationDecoder::find_undeclared_writes() {
  const auto& schema = operation_.handle_->schema();
  if (!schema.argumentIndexWithName("running_mean")) return;
  for (const char* const flag : {"training", "train"}) {
    const auto index = schema.argumentIndexWithName(flag);
    if (index && operation_.prototype_[*index].isBool() && !operation_.prototype_[*index].toBool()) return;
  }
  if (operation_.name_.find("_no_training") != std::string::npos) return;
  for (const char* const changed : {"running_mean", "running_var"}) {
    if (const auto slot = slot_of(changed)) operation_.slots_[*slot].written = true;
  }
}

Status OperationDecoder::argument(const c10::TypePtr& type, const c10::Argument& schema, c10::IValue& value) {
  Item item;
  if (!reader_.peek(item)) return malformed("missing");
  const auto kind = type->kind();
  if (kind == c10::TypeKind::OptionalType && item.tag != Tag::kNone) {
    return argument(type->containedType(0), schema, value);
  }
  (void)reader_.item(item);
  if (kind == c10::TypeKind::GeneratorType ||
      (kind == c10::TypeKind::OptionalType && type->containedType(0)->kind() == c10::TypeKind::GeneratorType)) {
    // None, too, is the session's own: the process's default generator belongs to all sessions.
    const std::uint32_t number = item.tag == Tag::kGenerator ? item.count : 0;
    if (number >= wire::kMaxGenerators) return malformed("a generator of that number is not allowed");
    operation_.generators_.emplace_back(index_, number);
    return {};
  }
  if (item.tag == Tag::kNone && kind == c10::TypeKind::OptionalType) return {};
  std::uint64_t word = 0, second = 0;
  std::string_view text;
  switch (kind) {
    case c10::TypeKind::TensorType: {
      at::Tensor made;
      ROUSE_RETURN_IF_ERROR(tensor(item, schema, -1, made));
      value = std::move(made);
      return {};
    }
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      if (item.tag != Tag::kInt || !reader_.word(word)) break;
      if (!enumerated(schema, word)) return malformed("no such " + schema.real_type()->str());
      value = static_cast<std::int64_t>(word);
      return {};
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      if (item.tag != Tag::kDouble || !reader_.word(word)) break;
      value = std::bit_cast<double>(word);
      return {};
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      if (item.tag != Tag::kBool) break;
      value = item.count != 0;
      return {};
    case c10::TypeKind::NumberType:
      if (item.tag == Tag::kBool) {
        value = item.count != 0;
      } else if (item.tag == Tag::kInt && reader_.word(word)) {
        value = static_cast<std::int64_t>(word);
      } else if (item.tag == Tag::kDouble && reader_.word(word)) {
        value = std::bit_cast<double>(word);
      } else if (item.tag == Tag::kComplex && reader_.word(word) && reader_.word(second)) {
        value = c10::complex<double>(std::bit_cast<double>(word), std::bit_cast<double>(second));
      } else {
        break;
      }
      return {};
    case c10::TypeKind::StringType:
      if (item.tag != Tag::kString || !reader_.text(item.count, text)) break;
      value = std::string(text);
      return {};
    case c10::TypeKind::DeviceObjType:
      if (item.tag != Tag::kDevice) break;
      value = item.count != 0 ? c10::Device(c10::DeviceType::CPU) : operation_.device_;
      return {};
    case c10::TypeKind::ListType:
      return list(type->containedType(0), schema, item, value);
    case c10::TypeKind::ClassType:
      if (item.tag != Tag::kObject || !objects_) break;
      ROUSE_RETURN_IF_ERROR(objects_->find(item.count, *type, value));
      operation_.objects_.push_back(item.count);
      return {};
    default:
      return {Code::kUnsupported, operation_.name_ + ": arguments of type " + type->str() + " cannot be redirected"};
  }
  return malformed("not a " + type->str());
}

Status OperationDecoder::list(const c10::TypePtr& element, const c10::Argument& schema, const Item& item,
                              c10::IValue& value) {
  if (item.count > wire::kMaxListLength || item.count > reader_.left() / 8) return malformed("a list that long");
  std::vector<std::uint64_t> words(item.count);
  switch (element->kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: {
      if (item.tag != Tag::kIntList || !reader_.words(item.count, std::span(words))) break;
      value = c10::IValue(c10::List<std::int64_t>(
          c10::ArrayRef<std::int64_t>(reinterpret_cast<const std::int64_t*>(words.data()), words.size())));
      return {};
    }
    case c10::TypeKind::FloatType: {
      if (item.tag != Tag::kDoubleList || !reader_.words(item.count, std::span(words))) break;
      c10::List<double> values;
      for (const auto word : words) values.push_back(std::bit_cast<double>(word));
      value = c10::IValue(std::move(values));
      return {};
    }
    case c10::TypeKind::BoolType: {
      if (item.tag != Tag::kBoolList || !reader_.words(item.count, std::span(words))) break;
      c10::List<bool> values;
      for (const auto word : words) values.push_back(word != 0);
      value = c10::IValue(std::move(values));
      return {};
    }
    case c10::TypeKind::NumberType: {
      if (item.tag != Tag::kList) break;
      c10::List<at::Scalar> values;
      for (std::uint32_t i = 0; i < item.count; ++i) {
        c10::IValue number;
        ROUSE_RETURN_IF_ERROR(argument(element, schema, number));
        values.push_back(number.toScalar());
      }
      value = c10::IValue(std::move(values));
      return {};
    }
    case c10::TypeKind::ClassType: {
      if (item.tag != Tag::kList) break;
      c10::impl::GenericList values(element);
      for (std::uint32_t i = 0; i < item.count; ++i) {
        c10::IValue object;
        ROUSE_RETURN_IF_ERROR(argument(element, schema, object));
        values.push_back(std::move(object));
      }
      value = c10::IValue(std::move(values));
      return {};
    }
    case c10::TypeKind::TensorType:
    case c10::TypeKind::OptionalType: {
      const bool optional = element->kind() == c10::TypeKind::OptionalType;
      if (item.tag != Tag::kList || (optional && element->containedType(0)->kind() != c10::TypeKind::TensorType)) break;
      c10::List<at::Tensor> tensors;
      c10::List<std::optional<at::Tensor>> optionals;
      for (std::uint32_t i = 0; i < item.count; ++i) {
        Item each;
        if (!reader_.item(each)) return malformed("a list that ends early");
        at::Tensor made;
        const bool none = optional && each.tag == Tag::kNone;
        if (!none) ROUSE_RETURN_IF_ERROR(tensor(each, schema, static_cast<std::int32_t>(i), made));
        if (optional) {
          optionals.push_back(none ? std::nullopt : std::make_optional(made));
        } else {
          tensors.push_back(made);
        }
      }
      value = optional ? c10::IValue(std::move(optionals)) : c10::IValue(std::move(tensors));
      operation_.lists_.push_back(index_);
      return {};
    }
    default:
      return {Code::kUnsupported, operation_.name_ + ": lists of " + element->str() + " cannot be redirected"};
  }
  return malformed("not a list of " + element->str());
}

Status OperationDecoder::tensor(const Item& item, const c10::Argument& schema, std::int32_t element,
                                at::Tensor& value) {
  if (item.tag == Tag::kUndefined) return {};
  if (item.tag == Tag::kNumber) {
    std::array<std::uint64_t, 2> bits{};
    if (!known_dtype(item.dtype) || !reader_.words(2, std::span<std::uint64_t>(bits))) return malformed("not a number");
    const auto dtype = static_cast<c10::ScalarType>(item.dtype);
    if (c10::elementSize(dtype) > sizeof(bits)) return malformed("not a number");
    value = at::scalar_tensor(0, at::TensorOptions().dtype(dtype));
    std::memcpy(value.mutable_data_ptr(), bits.data(), c10::elementSize(dtype));
    if (item.flags & wire::kWrapped) value.unsafeGetTensorImpl()->set_wrapped_number(true);
    return {};
  }
  if (item.tag != Tag::kTensor) return malformed("not a tensor");
  Slot slot;
  if (operation_.slots_.size() >= wire::kMaxSlots || !read_spec(reader_, item, operation_.device_, slot.spec)) {
    return malformed("a tensor that cannot be");
  }
  slot.written = schema.alias_info() != nullptr && schema.alias_info()->isWrite();
  operation_.slots_.push_back(std::move(slot));
  operation_.places_.push_back({index_, element});
  return {};
}

}  // namespace rouse::executor
