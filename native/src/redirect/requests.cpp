#include "requests.h"

#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include "device.h"
#include "encode.h"
#include "rouse/redirect/client.h"
#include "rouse/tape/signature.h"

namespace rouse::redirect {
namespace {

// Outputs that an answer may have where it is not known how many the tape has.
constexpr std::uint32_t kMostOutputs = 64;
constexpr std::uint64_t kDescribeTapes = ~std::uint64_t{0};

at::Tensor make_tensor(std::uint64_t name, std::uint64_t bytes, c10::ScalarType dtype,
                       std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
                       std::int64_t offset) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      make_storage(name, bytes), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef(sizes.data(), sizes.size()),
                                                      c10::IntArrayRef(strides.data(), strides.size()), offset);
  return tensor;
}

void write_tensor(wire::Writer& out, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.dim() <= static_cast<std::int64_t>(wire::kMaxDimensions), "a tensor of ", tensor.dim(),
              " dimensions cannot be an output of a request");
  TORCH_CHECK_NOT_IMPLEMENTED(!tensor.is_quantized(),
                              "a quantised tensor cannot be an output of a request; dequantize() it");
  const auto flags =
      static_cast<std::uint8_t>((tensor.is_conj() ? wire::kConjugate : 0) | (tensor.is_neg() ? wire::kNegative : 0));
  out.item(wire::Tag::kTensor, 0, static_cast<std::uint8_t>(tensor.scalar_type()), flags,
           static_cast<std::uint8_t>(tensor.dim()));
  out.word(static_cast<std::uint64_t>(tensor.storage_offset()));
  out.words({tensor.sizes().data(), tensor.sizes().size()});
  out.words({tensor.strides().data(), tensor.strides().size()});
}

// Sizes, strides and bytes of one output in an answer. Throws where the executor sent something else.
at::Tensor read_tensor(wire::Reader& reader, std::uint64_t name) {
  wire::Item item;
  std::uint64_t offset = 0;
  std::vector<std::int64_t> sizes, strides;
  bool ok = reader.item(item) && item.tag == wire::Tag::kTensor && item.dimensions <= wire::kMaxDimensions &&
            item.dtype < static_cast<std::uint8_t>(c10::ScalarType::NumOptions) && reader.word(offset);
  if (ok) {
    sizes.resize(item.dimensions);
    strides.resize(item.dimensions);
    ok = reader.words(item.dimensions, std::span(sizes)) && reader.words(item.dimensions, std::span(strides));
  }
  TORCH_CHECK(ok, "the executor answered a replay with what is no tensor");
  const auto dtype = static_cast<c10::ScalarType>(item.dtype);
  std::uint64_t elements = offset + 1;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    TORCH_CHECK(sizes[i] >= 0 && strides[i] >= 0, "the executor answered a replay with what is no tensor");
    if (sizes[i] == 0) elements = 0;
    if (elements != 0) elements += static_cast<std::uint64_t>(sizes[i] - 1) * static_cast<std::uint64_t>(strides[i]);
  }
  auto tensor =
      make_tensor(name, elements * c10::elementSize(dtype), dtype, sizes, strides, static_cast<std::int64_t>(offset));
  if (item.flags & wire::kConjugate) tensor.unsafeGetTensorImpl()->_set_conj(true);
  if (item.flags & wire::kNegative) tensor.unsafeGetTensorImpl()->_set_neg(true);
  return tensor;
}

std::vector<std::uint64_t> names_of(std::span<const at::Tensor> tensors) {
  std::vector<std::uint64_t> names;
  for (const at::Tensor& tensor : tensors) names.push_back(name_of(tensor));
  return names;
}

template <typename Head>
void send(Client& client, wire::Kind kind, const Head& head, const wire::Writer& words) {
  client.send(kind, std::as_bytes(std::span(&head, 1)), words.as_bytes());
}

// The answer to a REPLAY that was just sent, with the lock.
std::span<const std::byte> answer_of(Client& client) {
  RemoteError error;
  const auto answer = client.wait(wire::Kind::kReplayed, error);
  if (answer.empty()) Client::raise(error);
  return answer.subspan(sizeof(wire::Header));
}

}  // namespace

std::array<std::uint64_t, 2> signature_of(std::string_view what, std::span<const at::Tensor> inputs) {
  std::vector<tape::Look> looks;
  for (const at::Tensor& input : inputs) {
    TORCH_CHECK_NOT_IMPLEMENTED(!input.is_quantized(),
                                "a quantised tensor cannot be an input of a request; quantise it there");
    looks.push_back({static_cast<std::uint8_t>(input.scalar_type()),
                     input.storage_offset(),
                     {input.sizes().data(), input.sizes().size()},
                     {input.strides().data(), input.strides().size()}});
  }
  return tape::signature_of(what, looks);
}

void begin_request(std::uint64_t request, std::string_view what, std::span<const at::Tensor> inputs) {
  const auto signature = signature_of(what, inputs);
  wire::Writer words;
  for (const auto name : names_of(inputs)) words.word(name);
  auto& client = Client::get();
  const auto hold = client.lock();
  send(client, wire::Kind::kBegin,
       wire::Begin{{}, request, {signature[0], signature[1]}, static_cast<std::uint32_t>(inputs.size()), 0}, words);
}

void end_request(std::uint64_t request, std::span<const at::Tensor> outputs) {
  wire::Writer words;
  const auto names = names_of(outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    words.word(names[i]);
    write_tensor(words, outputs[i]);
  }
  auto& client = Client::get();
  const auto hold = client.lock();
  send(client, wire::Kind::kEnd, wire::End{{}, request, static_cast<std::uint32_t>(outputs.size()), 0}, words);
}

ReplayAnswer replay(std::string_view what, std::span<const at::Tensor> inputs) {
  const auto signature = signature_of(what, inputs);
  const auto given = names_of(inputs);
  auto& client = Client::get();
  const auto hold = client.lock();
  const std::uint64_t first = client.fresh_names();
  TORCH_CHECK(first + kMostOutputs < wire::kMaxStorages, "the rouse device holds ", wire::kMaxStorages,
              " storages, no more fit");
  wire::Writer words;
  for (const auto name : given) words.word(name);
  for (std::uint32_t i = 0; i < kMostOutputs; ++i) words.word(first + i);
  send(client, wire::Kind::kReplay,
       wire::Replay{{}, signature[0], static_cast<std::uint32_t>(inputs.size()), kMostOutputs}, words);
  wire::Reader reader(answer_of(client));
  ReplayAnswer answer;
  std::uint64_t count = 0;
  TORCH_CHECK(reader.word(answer.outcome) && reader.word(count) && count <= kMostOutputs,
              "the executor answered a replay with something else");
  // From here on they are ours to free, whatever else the answer holds.
  client.keep_fresh(static_cast<std::uint32_t>(count));
  for (std::uint64_t i = 0; i < count; ++i) answer.outputs.push_back(read_tensor(reader, first + i));
  return answer;
}

std::string describe_tapes() {
  auto& client = Client::get();
  const auto hold = client.lock();
  send(client, wire::Kind::kReplay, wire::Replay{{}, kDescribeTapes, 0, 0}, {});
  wire::Reader reader(answer_of(client));
  std::uint64_t outcome = 0, count = 0;
  std::string_view text;
  TORCH_CHECK(reader.word(outcome) && reader.word(count) && reader.text(count, text),
              "the executor described its tapes with something else");
  return std::string(text);
}

}  // namespace rouse::redirect
