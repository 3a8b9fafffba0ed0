// What keeps an executor from being more than it has to be.
#pragma once

#include "rouse/base/status.h"

namespace rouse::serve {

// The kernel sends `signal` to this process when the one that started it ends. FAILED where that one is gone already.
Status die_with_parent(int signal, int parent_pid);

// No new privileges, no core dumps, no other process of this user may look into our memory; and system calls that an
// executor has no use for (new programs, tracing, network sockets, mounts, kernel modules, …) fail with EPERM from now
// on, in all threads. Code that took over an executor finds neither a shell nor a network.
Status confine();

}  // namespace rouse::serve
