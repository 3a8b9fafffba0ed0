#include <algorithm>
#include <string>

#include "rouse/tape/tape.h"

namespace rouse::tape {
namespace {

Status bad(std::size_t instruction, const std::string& what) {
  return Status(Code::kInvalid, "instruction " + std::to_string(instruction) + " of a tape " + what);
}

// How many places an instruction names, and how many of them it makes, at the end.
struct Uses {
  std::uint32_t operands, makes;
};

Uses uses_of(const Instruction& instruction) {
  switch (instruction.op) {
    case Op::kCall:
      return {std::uint32_t{instruction.slots} + instruction.results, instruction.results};
    case Op::kCreate:
      return {1, 1};
    case Op::kResize:
    case Op::kWrite:
    case Op::kGuard:
      return {1, 0};
    case Op::kValue:
    case Op::kSeed:
      return {0, 0};
  }
  return {0, 0};
}

class Checker {
 public:
  explicit Checker(const Tape& tape) : tape_(tape), made_(tape.places.size(), 0), bytes_(tape.places.size()) {}

  Status run() {
    ROUSE_RETURN_IF_ERROR(places());
    for (std::size_t i = 0; i < tape_.instructions.size(); ++i) ROUSE_RETURN_IF_ERROR(instruction(i));
    return outputs();
  }

 private:
  Status places() {
    for (std::size_t i = 0; i < tape_.places.size(); ++i) {
      const Place& place = tape_.places[i];
      const std::string name = "place " + std::to_string(i) + " of a tape ";
      if (place.bytes > kMaxArenaBytes) return Status(Code::kInvalid, name + "is larger than memory");
      made_[i] = place.kind != Class::kScratch;
      bytes_[i] = place.bytes;
      if (place.kind == Class::kWeight &&
          (place.value > tape_.origin.model_bytes || place.bytes > tape_.origin.model_bytes - place.value))
        return Status(Code::kInvalid, name + "lies outside of the model");
      if (place.kind == Class::kWeight && place.written)
        return Status(Code::kInvalid, name + "is a weight that the tape would change");
      if (place.kind == Class::kInput && place.value >= tape_.inputs)
        return Status(Code::kInvalid, name + "is an input that there is not");
      if (place.kind == Class::kConstant &&
          (place.written || place.value >= tape_.blobs.size() || tape_.blobs[place.value].size() != place.bytes))
        return Status(Code::kInvalid, name + "is a constant that is not there, or not constant");
    }
    return {};
  }

  Status instruction(std::size_t i) {
    const Instruction& it = tape_.instructions[i];
    if (it.op > Op::kSeed) return bad(i, "is of no kind that is known");
    const Uses uses = uses_of(it);
    if (it.first > tape_.operands.size() || uses.operands > tape_.operands.size() - it.first)
      return bad(i, "has operands that are not there");
    const std::uint32_t* operands = tape_.operands.data() + it.first;
    for (std::uint32_t k = 0; k < uses.operands; ++k) {
      if (operands[k] >= tape_.places.size()) return bad(i, "names a place that is not there");
      const bool makes = k >= uses.operands - uses.makes;
      if (made_[operands[k]] == makes) return bad(i, makes ? "makes a place again" : "uses a place before it is made");
      if (makes) made_[operands[k]] = 1;
    }
    const bool has_blob = it.op == Op::kWrite || it.op == Op::kGuard || it.op == Op::kValue;
    if (has_blob && it.number >= tape_.blobs.size()) return bad(i, "names a blob that is not there");
    if (it.op == Op::kCall && it.number >= tape_.templates.size()) return bad(i, "names a template that is not there");
    if (it.op == Op::kCreate || it.op == Op::kResize) {
      if (it.count > kMaxArenaBytes) return bad(i, "asks for more than memory");
      bytes_[operands[0]] = it.count;
    }
    if (it.op == Op::kWrite || it.op == Op::kGuard) {
      const std::uint64_t has = bytes_[operands[0]], count = tape_.blobs[it.number].size();
      if (it.offset > has || count > has - it.offset) return bad(i, "reads or writes outside of its place");
    }
    if ((it.op == Op::kWrite || it.op == Op::kResize) && !tape_.places[operands[0]].written)
      return bad(i, "changes a place that is said to be unchanged");
    if (it.op == Op::kValue && (i == 0 || tape_.instructions[i - 1].op != Op::kCall))
      return bad(i, "compares what no call returned");
    return {};
  }

  Status outputs() {
    for (std::size_t i = 0; i < tape_.outputs.size(); ++i) {
      const Output& output = tape_.outputs[i];
      if (output.place >= tape_.places.size() || !made_[output.place] || output.sizes.size() != output.strides.size())
        return Status(Code::kInvalid, "output " + std::to_string(i) + " of a tape is not there");
    }
    return {};
  }

  const Tape& tape_;
  std::vector<std::uint8_t> made_;
  std::vector<std::uint64_t> bytes_;
};

}  // namespace

Status check(const Tape& tape) {
  std::uint64_t blobs = 0;
  for (const auto& blob : tape.blobs) blobs += blob.size();
  if (tape.templates.size() > kMaxTemplates || tape.instructions.size() > kMaxInstructions ||
      tape.places.size() > kMaxPlaces || tape.operands.size() > kMaxOperands || tape.outputs.size() > kMaxOutputs ||
      tape.inputs > kMaxInputs || tape.blobs.size() > kMaxInstructions + kMaxPlaces || blobs > kMaxBlobBytes)
    return Status(Code::kInvalid, "a tape larger than any may be: " + std::to_string(tape.instructions.size()) +
                                      " instructions, " + std::to_string(tape.places.size()) + " places, " +
                                      std::to_string(blobs) + " bytes of constants");
  return Checker(tape).run();
}

Status fits(const Origin& made, const Origin& here) {
  auto differs = [](const char* what, const std::string& then, const std::string& now) {
    return Status(Code::kMismatch, std::string("a tape was recorded with ") + what + " " + then + ", here it is " +
                                       now + ": record it again");
  };
  if (made.torch_version != here.torch_version) return differs("PyTorch", made.torch_version, here.torch_version);
  if (made.device != here.device) return differs("device", made.device, here.device);
  if (made.layout != here.layout) return differs("the weights' layout", made.layout, here.layout);
  if (made.model_base != here.model_base || made.model_bytes != here.model_bytes)
    return differs("a model at", std::to_string(made.model_base) + "+" + std::to_string(made.model_bytes),
                   std::to_string(here.model_base) + "+" + std::to_string(here.model_bytes));
  return {};
}

std::vector<std::uint32_t> last_uses(const Tape& tape) {
  std::vector<std::uint32_t> last(tape.places.size(), kNeverUsed);
  for (std::size_t i = 0; i < tape.instructions.size(); ++i) {
    const Instruction& it = tape.instructions[i];
    for (std::uint32_t k = 0; k < uses_of(it).operands; ++k)
      last[tape.operands[it.first + k]] = static_cast<std::uint32_t>(i);
  }
  for (std::size_t i = 0; i < tape.places.size(); ++i)
    if (tape.places[i].kind != Class::kScratch && tape.places[i].kind != Class::kInput) last[i] = kOutlives;
  for (const Output& output : tape.outputs) last[output.place] = kOutlives;
  return last;
}

}  // namespace rouse::tape
