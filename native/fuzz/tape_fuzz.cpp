// Files of tapes: whatever they hold, load() gives a tape that holds together, or says why not.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "rouse/executor/arena.h"
#include "rouse/tape/tape.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> file(size);
  if (size) std::memcpy(file.data(), data, size);
  // As it is, and with its length and checksum put right: or nothing behind them would ever be reached.
  for (int repaired = 0; repaired < 2; ++repaired) {
    if (repaired) rouse::tape::repair(file);
    const auto tape = rouse::tape::load(file);
    if (!tape.ok()) continue;
    (void)rouse::tape::last_uses(tape.value());
    (void)rouse::executor::Layout::make(tape.value().lifetimes, tape.value().plan);
    const auto again = rouse::tape::save(tape.value());
    if (!again.ok() || !(rouse::tape::load(again.value()).value() == tape.value())) std::abort();
  }
  return 0;
}
