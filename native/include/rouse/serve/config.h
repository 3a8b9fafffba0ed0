// What an executor can be told: defaults, then the environment (ROUSE_EXECUTOR_…), then flags.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rouse/base/status.h"

namespace rouse::serve {

struct Config {
  // host:N: PyTorch's kernels for the CPU, in this process's memory; cuda:N: a GPU of this machine.
  std::string device = "host:0";
  // Path of the Unix socket of its link.
  std::string listen;
  uint64_t capacity_mib = 4096;
  // Of one session, where its opener says nothing else.
  uint64_t scratch_mib = 1024;
  uint64_t ring_kib = 4096;
  uint64_t max_sessions = 64;
  uint64_t max_models = 1024;
  uint64_t max_message_mib = 64;
  uint64_t max_calls = 1024;
  // Threads that one operator computes with.
  uint64_t threads = 1;
  uint64_t connect_s = 30;
  uint64_t drain_s = 10;
  // How long a turn on the device lasts where others wait.
  uint64_t quantum_us = 2000;
  // What a swap copies before who waits is told; 0: measured at start.
  uint64_t group_kib = 0;
  // Of the link into the device, for topologies that stand for other machines; 0: as fast as it goes.
  uint64_t link_mib_s = 0;
  // Process that it ends with; where it is gone at the start already, the executor does not start.
  uint64_t parent = 0;
  // Whether the process gives up what it does not need (seccomp).
  uint64_t confine = 1;
};

// `arguments` without the program's name; `environment` as main's third argument, ended by a null.
// INVALID with one line that names the flag or the variable, the value and the range.
Result<Config> read_config(std::span<const char* const> arguments, const char* const* environment);
// What --help prints.
std::string usage();

}  // namespace rouse::serve
