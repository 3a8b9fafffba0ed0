// One request as the engine shows it, becoming a tape.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "rouse/base/status.h"
#include "rouse/executor/engine.h"
#include "rouse/tape/tape.h"

namespace rouse::tape {

// What a recording gave: the tape, its operators beside it (templates[i] is operations[i] encoded).
struct Recorded {
  Tape tape;
  std::vector<std::shared_ptr<executor::Operation>> operations;
};

class Recording {
 public:
  // `model`: the range whose addresses are the function's weights; empty where it has none.
  Recording(Origin origin, std::span<const std::uint64_t> inputs);

  void create(std::uint64_t name, std::uint64_t bytes);
  void resize(std::uint64_t name, std::uint64_t bytes);
  void free(std::span<const std::uint64_t> names);
  void write(std::uint64_t name, std::uint64_t offset, std::span<const std::byte> data);
  void read(std::uint64_t name, std::uint64_t offset, std::span<const std::byte> data);
  void call(const std::shared_ptr<executor::Operation>& operation, std::span<const std::uint64_t> slots,
            std::span<const std::uint64_t> results, bool learned);
  void value(std::span<const std::byte> items);
  void seed(const wire::Seed& seed);
  // This request gives no tape, because of that.
  void refuse(std::string why);
  // The first reason there was; empty: none.
  const std::string& refused() const { return refused_; }

  // Ends it. REFUSED with the reason where it gives no tape.
  Result<Recorded> finish(std::span<const std::uint64_t> names, std::span<const executor::TensorSpec> outputs);

 private:
  std::uint32_t place(std::uint64_t name);
  std::uint32_t make(std::uint64_t name);
  void change(std::uint32_t place);
  void guard(const char* what);
  std::uint32_t blob(std::span<const std::byte> data);
  Instruction& add(Op op, std::span<const std::uint32_t> operands);

  Tape tape_;
  std::unordered_map<std::uint64_t, std::uint32_t> places_;  // by name, as names stand now
  std::unordered_map<const executor::Operation*, std::uint32_t> numbers_;
  std::vector<std::shared_ptr<executor::Operation>> operations_;
  std::vector<std::uint32_t> operands_;
  std::uint64_t blob_bytes_ = 0;
  // Something that lives longer than the request was changed: nothing after it can be taken back.
  bool changed_ = false;
  bool seeded_ = false;
  // The last call returned a value to Python: value() has to follow.
  bool awaits_value_ = false;
  std::string refused_;
};

}  // namespace rouse::tape
