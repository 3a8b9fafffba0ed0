// PyTorch's interface of graphs of any device, which not every release has that we build with: without it there are no
// graphs, and this is the only place that asks.
#pragma once

#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#define ROUSE_GRAPHS 1
#else
#define ROUSE_GRAPHS 0
#endif
