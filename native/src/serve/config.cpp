#include "rouse/serve/config.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <iomanip>
#include <optional>
#include <sstream>
#include <string_view>

#include "rouse/base/text.h"

namespace rouse::serve {

namespace {

struct Number {
  std::string_view name;
  uint64_t Config::* member;
  uint64_t least;
  uint64_t most;
  std::string_view what;
};

struct Text {
  std::string_view name;
  std::string Config::* member;
  std::string_view what;
};

constexpr std::array<Number, 15> kNumbers{{
    {"capacity-mib", &Config::capacity_mib, 1, 1ull << 24, "memory of the device"},
    {"scratch-mib", &Config::scratch_mib, 1, 1ull << 24, "memory of one session's tensors beside the weights"},
    {"ring-kib", &Config::ring_kib, 64, 1 << 20, "each direction of a session's rings; a power of two"},
    {"max-sessions", &Config::max_sessions, 1, 1024, "sessions at once"},
    {"max-models", &Config::max_models, 1, 65536, "models mapped at once"},
    {"max-message-mib", &Config::max_message_mib, 1, 2047, "largest message of a link"},
    {"max-calls", &Config::max_calls, 1, 65536, "calls served at once"},
    {"threads", &Config::threads, 1, 1024, "threads that one operator computes with"},
    {"connect-s", &Config::connect_s, 1, 3600, "how long a session waits for its process"},
    {"drain-s", &Config::drain_s, 0, 3600, "how long calls under way may take when it stops"},
    {"quantum-us", &Config::quantum_us, 1, 10'000'000, "longest turn on the device where others wait"},
    {"group-kib", &Config::group_kib, 0, 1 << 20, "what a swap copies before others are told; 0: measured at start"},
    {"link-mib-s", &Config::link_mib_s, 0, 1ull << 24, "bandwidth of the link into the device; 0: as fast as it goes"},
    {"parent", &Config::parent, 0, 1ull << 22, "process id that it ends with; 0: whichever started it"},
    {"confine", &Config::confine, 0, 1, "1: give up what it does not need (seccomp); 0: do not"},
}};
constexpr std::array<Text, 2> kTexts{{
    {"device", &Config::device, "what it computes on, as host:0 or cuda:0"},
    {"listen", &Config::listen, "absolute path of the Unix socket of its link, which is needed"},
}};
constexpr std::string_view kPrefix = "ROUSE_EXECUTOR_";

std::string variable(std::string_view name) {
  std::string out(kPrefix);
  for (const char c : name) out.push_back(c == '-' ? '_' : static_cast<char>(std::toupper(c)));
  return out;
}

// `source` is what the user wrote, for the error.
Status put(Config& config, std::string_view name, std::string_view value, const std::string& source) {
  for (const Text& text : kTexts) {
    if (text.name != name) continue;
    config.*text.member = value;
    return {};
  }
  for (const Number& number : kNumbers) {
    if (number.name != name) continue;
    uint64_t found = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), found);
    if (error != std::errc() || end != value.data() + value.size() || found < number.least || found > number.most) {
      return Status(Code::kInvalid, source + " is '" + std::string(value) + "'; it must be a number from " +
                                        std::to_string(number.least) + " to " + std::to_string(number.most));
    }
    config.*number.member = found;
    return {};
  }
  return Status(Code::kInvalid, source + " is not known; --help lists what is");
}

Status validate(const Config& config) {
  const std::string_view device = config.device;
  const size_t colon = std::min(device.find(':'), device.size());
  const std::string_view kind = device.substr(0, colon), number = device.substr(std::min(colon + 1, device.size()));
  // PyTorch counts devices in a byte.
  const bool numbered = !number.empty() && number.size() <= 2 &&
                        std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
  if ((kind != "host" && kind != "cuda") || !numbered) {
    return Status(Code::kUnsupported, "--device is '" + config.device + "'; this build computes on host:N and cuda:N");
  }
  if (config.listen.empty() || config.listen[0] != '/') {
    return Status(Code::kInvalid, "--listen is '" + config.listen + "'; it must be an absolute path");
  }
  if (!std::has_single_bit(config.ring_kib)) {
    return Status(Code::kInvalid, "--ring-kib is " + std::to_string(config.ring_kib) + "; it must be a power of two");
  }
  return {};
}

}  // namespace

Result<Config> read_config(std::span<const char* const> arguments, const char* const* environment) {
  Config config;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    if (!entry.starts_with(kPrefix)) continue;
    const size_t equals = entry.find('=');
    std::string name(entry.substr(kPrefix.size(), equals - kPrefix.size()));
    for (char& c : name) c = c == '_' ? '-' : static_cast<char>(std::tolower(c));
    ROUSE_RETURN_IF_ERROR(put(config, name, entry.substr(equals + 1), std::string(entry.substr(0, equals))));
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument(arguments[i]);
    if (!argument.starts_with("--")) {
      return Status(Code::kInvalid, text("'", argument, "' is not known; --help lists what is"));
    }
    const size_t equals = argument.find('=');
    const std::string flag(argument.substr(0, equals));
    std::optional<std::string_view> value;
    if (equals != std::string_view::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    }
    if (!value) return Status(Code::kInvalid, flag + " has no value");
    ROUSE_RETURN_IF_ERROR(put(config, std::string_view(flag).substr(2), *value, flag));
  }
  ROUSE_RETURN_IF_ERROR(validate(config));
  return config;
}

std::string usage() {
  const Config defaults;
  std::ostringstream out;
  out << "rouse-executor: computes on one device for the instances of a node.\n\n" << std::left;
  const auto line = [&](std::string_view name, std::string_view what, const auto& value) {
    out << "  --" << std::setw(18) << name << what << " (" << value << "); " << variable(name) << "\n";
  };
  for (const Text& text : kTexts) line(text.name, text.what, defaults.*text.member);
  for (const Number& number : kNumbers) line(number.name, number.what, defaults.*number.member);
  out << "\nExit codes: 0 stopped, 1 failed, 2 bad configuration, 3 the device cannot be used, 4 calls had to be cut "
         "off.\n";
  return out.str();
}

}  // namespace rouse::serve
