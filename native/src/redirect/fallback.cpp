#include "fallback.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/quantized/QTensorImpl.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>

#include <mutex>

#include "device.h"
#include "encode.h"
#include "operators.h"
#include "rouse/redirect/client.h"

namespace rouse::redirect {
namespace {

// Guarded by the client's lock.
struct Sent {
  std::uint32_t epoch = ~0u;
  c10::ScalarType default_dtype = c10::ScalarType::Float;
  wire::Writer message;
};
Sent& sent() {
  static auto* state = new Sent();
  return *state;
}

// Another executor knows no templates; another default dtype changes what operators return.
void follow_globals(Client& client, Operators& operators) {
  Sent& state = sent();
  if (C10_UNLIKELY(state.epoch != Client::epoch())) {
    operators.forget_numbers();
    state.epoch = Client::epoch();
    state.default_dtype = c10::ScalarType::Float;
  }
  if (C10_UNLIKELY(operators.exhausted())) {
    const wire::DropTemplate head{{}, wire::kAllTemplates, 0};
    client.send(wire::Kind::kDropTemplate, std::as_bytes(std::span(&head, 1)), {});
    operators.forget_numbers();
  }
  const auto dtype = c10::get_default_dtype_as_scalartype();
  if (C10_UNLIKELY(dtype != state.default_dtype)) {
    const wire::Setting head{
        {}, static_cast<std::uint32_t>(wire::SettingKey::kDefaultDtype), 0, static_cast<std::uint64_t>(dtype)};
    client.send(wire::Kind::kSetting, std::as_bytes(std::span(&head, 1)), {});
    state.default_dtype = dtype;
  }
}

void send_template(Client& client, Operators& operators, Operator& operation, Template& made) {
  wire::Template head{};
  head.header.kind = static_cast<std::uint16_t>(wire::Kind::kTemplate);
  head.number = operators.assign(operation, made);
  head.name_bytes = static_cast<std::uint16_t>(operation.name.size());
  head.overload_bytes = static_cast<std::uint16_t>(operation.overload.size());
  head.argument_bytes = static_cast<std::uint32_t>(8 * made.key.size());
  head.result_bytes = static_cast<std::uint32_t>(made.items.size());
  auto& message = sent().message;
  message.clear();
  message.head(head);
  message.text(operation.name);
  message.text(operation.overload);
  message.bytes(std::as_bytes(std::span(made.key)));
  message.bytes(made.items);
  client.send(message.view());
  client.counters.templates += 1;
}

std::span<std::uint64_t const> call_message(const Template& made, const Encoded& encoded,
                                            c10::ArrayRef<std::uint64_t> results, std::uint16_t flags) {
  auto& message = sent().message;
  message.clear();
  wire::Call head{};
  head.header.kind = static_cast<std::uint16_t>(wire::Kind::kCall);
  head.header.flags = flags;
  head.template_number = made.number;
  head.slots = static_cast<std::uint16_t>(encoded.names.size());
  head.results = static_cast<std::uint16_t>(results.size());
  message.head(head);
  for (const auto name : encoded.names) message.word(name);
  for (const auto name : results) message.word(name);
  return message.view();
}

// The tensor that an executor described, over `storage`.
at::Tensor make_result(const c10::Storage& storage, const Described& described) {
  at::Tensor tensor =
      described.quantization
          ? quantized::make(storage, c10::DispatchKeySet(c10::DispatchKey::QuantizedPrivateUse1),
                            *described.quantization)
          : at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                     c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                     c10::scalarTypeToTypeMeta(described.dtype));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(c10::IntArrayRef(described.sizes), c10::IntArrayRef(described.strides), described.offset);
  if (described.flags & wire::kConjugate) impl->_set_conj(true);
  if (described.flags & wire::kNegative) impl->_set_neg(true);
  return tensor;
}

// An argument that the operator may have resized, quantised in another way, or marked as to be conjugated. Its storage
// is not the one that the template was learnt with, which may have had more bytes or fewer: it grew to what the tensor
// needs, or is as it was.
void follow_argument(const at::Tensor& argument, const Described& described) {
  auto* impl = argument.unsafeGetTensorImpl();
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  const auto needed = at::detail::computeStorageNbytes(
      c10::IntArrayRef(described.sizes), c10::IntArrayRef(described.strides),
      c10::scalarTypeToTypeMeta(described.dtype).itemsize(), static_cast<std::size_t>(described.offset));
  if (storage->nbytes() < needed) storage->set_nbytes(needed);
  if (impl->sizes() != c10::IntArrayRef(described.sizes) || impl->strides() != c10::IntArrayRef(described.strides) ||
      impl->storage_offset() != described.offset) {
    impl->set_sizes_and_strides(c10::IntArrayRef(described.sizes), c10::IntArrayRef(described.strides),
                                described.offset);
  }
  const bool conjugate = (described.flags & wire::kConjugate) != 0;
  const bool negative = (described.flags & wire::kNegative) != 0;
  if (impl->is_conj() != conjugate) impl->_set_conj(conjugate);
  if (impl->is_neg() != negative) impl->_set_neg(negative);
  if (described.quantization) at::get_qtensorimpl(argument)->set_quantizer_(described.quantization->quantizer);
}

struct Storages {
  c10::SmallVector<c10::Storage, 4> made;
};

at::Tensor result_tensor(const Described& described, const std::vector<c10::Storage>& slots, Storages& storages,
                         c10::ArrayRef<std::uint64_t> names) {
  switch (described.tag) {
    case wire::Tag::kUndefined:
      return {};
    case wire::Tag::kNew:
      storages.made.push_back(make_storage(names[storages.made.size()], described.storage_bytes));
      return make_result(storages.made.back(), described);
    case wire::Tag::kShared:
      TORCH_CHECK(described.index < storages.made.size(), "the executor described a result that cannot be");
      return make_result(storages.made[described.index], described);
    default:
      TORCH_CHECK(described.index < slots.size(), "the executor described a result that cannot be");
      return make_result(slots[described.index], described);
  }
}

// The slots' storages, held: results may share them after the arguments are gone.
std::vector<c10::Storage> slot_storages(const Encoded& encoded, const Outcomes& outcomes) {
  std::vector<c10::Storage> held;
  for (const auto& outcome : outcomes.list) {
    for (const auto& tensor : outcome.tensors) {
      if (tensor.tag != wire::Tag::kAlias) continue;
      for (const auto* storage : encoded.slots) {
        held.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(const_cast<c10::StorageImpl*>(storage)));
      }
      return held;
    }
  }
  return held;
}

c10::IValue value_of(const Outcome& outcome) {
  switch (outcome.kind) {
    case Outcome::Kind::kBool:
      return outcome.integer != 0;
    case Outcome::Kind::kInt:
      return outcome.integer;
    case Outcome::Kind::kDouble:
      return outcome.real;
    case Outcome::Kind::kComplex:
      return c10::complex<double>(outcome.real, outcome.imaginary);
    default:
      return {};
  }
}

// Replaces the arguments on the stack by the results.
void give_results(const Operator& operation, const Outcomes& outcomes, const Encoded& encoded,
                  c10::ArrayRef<std::uint64_t> names, std::size_t argument_count, torch::jit::Stack& stack) {
  const std::size_t first = stack.size() - argument_count;
  TORCH_CHECK(outcomes.list.size() == operation.returns_argument.size(), operation.name,
              ": the executor returned another number of results than the operator's schema has");
  std::vector<c10::Storage> slots;
  bool have_slots = false;
  Storages storages;
  c10::SmallVector<c10::IValue, 4> results;
  for (std::size_t i = 0; i < outcomes.list.size(); ++i) {
    const auto& outcome = outcomes.list[i];
    const int argument = operation.returns_argument[i];
    if (argument >= 0 && outcome.kind == Outcome::Kind::kTensor) {
      const auto& tensor = stack[first + static_cast<std::size_t>(argument)].toTensor();
      if (tensor.defined() && outcome.tensors[0].tag == wire::Tag::kAlias) follow_argument(tensor, outcome.tensors[0]);
      results.emplace_back(tensor);
      continue;
    }
    if (outcome.kind != Outcome::Kind::kTensor && outcome.kind != Outcome::Kind::kList) {
      results.push_back(value_of(outcome));
      continue;
    }
    if (!have_slots) {
      slots = slot_storages(encoded, outcomes);
      have_slots = true;
    }
    if (outcome.kind == Outcome::Kind::kTensor) {
      results.emplace_back(result_tensor(outcome.tensors[0], slots, storages, names));
      continue;
    }
    c10::List<at::Tensor> list;
    for (const auto& tensor : outcome.tensors) list.push_back(result_tensor(tensor, slots, storages, names));
    results.emplace_back(std::move(list));
  }
  torch::jit::drop(stack, argument_count);
  for (auto& result : results) stack.push_back(std::move(result));
}

Outcomes learn(Client& client, Operators& operators, Operator& operation, Template& made, const Encoded& encoded,
               bool dynamic, c10::SmallVectorImpl<std::uint64_t>& names) {
  const bool keep = !dynamic && !operation.has_values;
  const std::uint64_t first = client.fresh_names();
  const auto flags = static_cast<std::uint16_t>(wire::kCallLearn | (keep ? wire::kCallKeep : 0));
  client.send(call_message(made, encoded, {first}, flags));
  RemoteError error;
  const auto answer = client.wait(wire::Kind::kMeta, error);
  client.counters.learned += 1;
  if (answer.empty()) Client::raise(error);
  wire::Reader reader(answer);
  wire::Meta head;
  std::span<const std::byte> items;
  Outcomes outcomes;
  TORCH_CHECK(reader.head(head) && reader.bytes(head.result_bytes, items) && outcomes.read(items) &&
                  outcomes.made == head.made && head.made <= wire::kMaxSlots,
              "the executor answered what was not asked");
  client.keep_fresh(head.made);
  for (std::uint32_t i = 0; i < head.made; ++i) names.push_back(first + i);
  if (keep) {
    made.known = true;
    made.outcomes = outcomes;
    made.items.assign(items.begin(), items.end());
    if (!encoded.has_object) operators.learnt(operation, made.key, items);
  }
  return outcomes;
}

// An operator that makes an object, as by packing weights, runs in the host's memory, where objects stay.
void run_on_host(const c10::OperatorHandle& handle, torch::jit::Stack& stack) {
  const std::size_t argument_count = handle.schema().arguments().size();
  for (std::size_t i = stack.size() - argument_count; i < stack.size(); ++i) {
    if (stack[i].isTensor() && stack[i].toTensor().defined()) {
      stack[i] = stack[i].toTensor().cpu();
    } else if (stack[i].isTensorList()) {
      auto list = stack[i].toTensorList().copy();
      for (std::size_t element = 0; element < list.size(); ++element) list.set(element, list.get(element).cpu());
      stack[i] = std::move(list);
    }
  }
  handle.callBoxed(stack);
}

}  // namespace

void redirect(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  // What encoding needs is kept a thread; a nested call (an upload within encoding) takes another.
  thread_local std::vector<std::unique_ptr<Encoded>> spare;
  std::unique_ptr<Encoded> mine;
  if (spare.empty()) {
    mine = std::make_unique<Encoded>();
  } else {
    mine = std::move(spare.back());
    spare.pop_back();
  }
  Encoded& encoded = *mine;
  encoded.clear();
  Client& client = Client::get();
  Operators& operators = Operators::get();
  auto hold = client.lock();
  Operator& operation = operators.of(handle);
  hold.unlock();
  if (C10_UNLIKELY(operation.returns_object)) return run_on_host(handle, *stack);
  const std::size_t argument_count = handle.schema().arguments().size();
  encode(operation, c10::ArrayRef<c10::IValue>(stack->data() + stack->size() - argument_count, argument_count),
         encoded);
  const auto hash = hash_of(encoded.key.view());
  const bool dynamic = operation.data_dependent || (operation.masks && encoded.has_mask);

  hold.lock();
  follow_globals(client, operators);
  Template* made = operation.find(hash, encoded.key.view());
  if (!made) {
    made = &operators.add(operation, hash, encoded.key.view());
    if (const auto* expected =
            dynamic || encoded.has_object ? nullptr : operators.expected(operation, made->key, made->items)) {
      made->outcomes = *expected;
      made->known = true;
    }
  }
  if (made->number == kUnsent) send_template(client, operators, operation, *made);
  c10::SmallVector<std::uint64_t, 4> names;
  client.counters.calls += 1;
  if (made->known) {
    for (std::uint32_t i = 0; i < made->outcomes.made; ++i) names.push_back(client.take_name());
    client.send(call_message(*made, encoded, names, 0));
    // Templates live as long as the process or until all are dropped, which only a call of this thread's turn does.
    const Outcomes& outcomes = made->outcomes;
    give_results(operation, outcomes, encoded, names, argument_count, *stack);
    hold.unlock();
    if (C10_UNLIKELY(client.blocking.load(std::memory_order_relaxed))) client.synchronize();
  } else {
    const Outcomes outcomes = learn(client, operators, operation, *made, encoded, dynamic, names);
    hold.unlock();
    give_results(operation, outcomes, encoded, names, argument_count, *stack);
  }
  encoded.clear();
  spare.push_back(std::move(mine));
}

}  // namespace rouse::redirect
