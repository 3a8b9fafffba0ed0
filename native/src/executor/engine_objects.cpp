// The messages that make and drop objects.
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "rouse/wire/words.h"
#include "state.h"

namespace rouse::executor {

Status Engine::State::on_object(std::span<const std::byte> message) {
  wire::Object head;
  wire::Reader reader(message);
  std::string_view class_name, implementation;
  std::span<const std::byte> items;
  if (!reader.head(head) || !reader.text(head.class_bytes, class_name) ||
      !reader.text(head.implementation_bytes, implementation) || head.state_bytes % 8 != 0 ||
      !reader.bytes(head.state_bytes, items) || head.slots > wire::kMaxSlots ||
      reader.left() != 8u * std::size_t{head.slots}) {
    return {Code::kInvalid, "message OBJECT: its parts do not add up to its size"};
  }
  names.resize(head.slots);
  (void)reader.words(names.size(), std::span(names));
  // PyTorch packs for the CPU alone, and reads what it packs from the host's memory.
  if (!options.compute.host()) {
    return objects.put_broken(head.number, "packed weights compute on the CPU, and not on " +
                                               options.compute.device().str() +
                                               "; give the function execution = \"plain\", or weights of plain tensors");
  }
  if (const Status there = arrived(names); !there.ok()) return objects.put_broken(head.number, there.text());
  std::size_t next = 0;
  const auto tensor = [&](const TensorSpec& spec) -> Result<at::Tensor> {
    const auto* entry = next < names.size() ? storages.find(names[next]) : nullptr;
    if (!entry) return Status(Code::kInvalid, "OBJECT with a storage that is not there");
    if (entry->state == Storages::State::kPoisoned)
      return Status(Code::kFailed, "a part of it was to be made by an operator that failed");
    if (entry->storage.nbytes() < spec.required_bytes)
      return Status(Code::kInvalid, "OBJECT with a storage of fewer bytes than its tensor");
    ++next;
    at::Tensor part = make_tensor(entry->storage, spec);
    // Packing takes memory that no limit of the session counts; a tensor of its own takes as much that one does.
    return part.is_non_overlapping_and_dense() ? part : part.contiguous();
  };
  return objects.make(head.number, std::string(class_name), std::string(implementation), wire::Reader(items),
                      options.compute.device(), tensor);
}

Status Engine::State::on_drop_object(std::span<const std::byte> message) {
  wire::DropObject head;
  wire::Reader reader(message);
  if (!reader.head(head) || reader.left() != 0) return {Code::kInvalid, "message DROP_OBJECT: its length is wrong"};
  if (!objects.drop(head.number)) {
    return {Code::kInvalid, "DROP_OBJECT of " + std::to_string(head.number) + ", which is not there"};
  }
  for (auto& each : templates) {
    if (each && std::find(each->objects().begin(), each->objects().end(), head.number) != each->objects().end())
      each = nullptr;
  }
  return {};
}

}  // namespace rouse::executor
