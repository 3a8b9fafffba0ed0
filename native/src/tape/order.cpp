#include "rouse/tape/order.h"

#include <cstring>
#include <string_view>

#include "rouse/wire/format.h"

namespace rouse::tape {
namespace {

// As executor/operation.cpp has it: operators that read their first tensor by rows.
bool gathers(const std::vector<std::byte>& message) {
  wire::Template head;
  if (message.size() < sizeof head) return false;
  std::memcpy(&head, message.data(), sizeof head);
  if (head.name_bytes > message.size() - sizeof head) return false;
  const std::string_view name(reinterpret_cast<const char*>(message.data()) + sizeof head, head.name_bytes);
  return name == "aten::embedding" || name == "aten::index_select";
}

}  // namespace

WeightOrder weight_order(const Tape& tape) {
  enum : std::uint8_t { kUnseen, kByRows, kWhole };
  std::vector<std::uint8_t> seen(tape.places.size(), kUnseen);
  std::vector<std::uint32_t> uses;
  const auto use = [&](std::uint32_t place, std::uint8_t how) {
    if (tape.places[place].kind != Class::kWeight || tape.places[place].bytes == 0) return;
    if (seen[place] == kUnseen) uses.push_back(place);
    if (seen[place] < how) seen[place] = how;
  };
  std::vector<std::uint8_t> by_rows(tape.templates.size());
  for (std::size_t i = 0; i < tape.templates.size(); ++i) by_rows[i] = gathers(tape.templates[i]);
  for (const Instruction& it : tape.instructions) {
    if (it.op == Op::kCall) {
      for (std::uint32_t k = 0; k < it.slots; ++k)
        use(tape.operands[it.first + k], k == 0 && by_rows[it.number] ? kByRows : kWhole);
    } else if (it.op == Op::kGuard) {
      use(tape.operands[it.first], kWhole);
    }
  }
  for (const Output& output : tape.outputs) use(output.place, kWhole);
  WeightOrder order;
  for (const auto place : uses) {
    const Part part{tape.places[place].value, tape.places[place].bytes};
    order.first_uses.push_back(part);
    if (seen[place] == kByRows) order.tables.push_back(part);
  }
  return order;
}

}  // namespace rouse::tape
