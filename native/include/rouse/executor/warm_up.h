// What PyTorch does at the first call of its kernels, done before a request waits for it.
#pragma once

#include "rouse/base/status.h"
#include "rouse/executor/compute.h"

namespace rouse::executor {

// Runs the operators that most models are made of once, on a few numbers: their code is read in and their libraries are
// set up. Takes tens of milliseconds, once a process, and leaves nothing behind. FAILED where one of them does not run
// here: then none of a model's would.
Status warm_up(const Compute& compute = {});

}  // namespace rouse::executor
