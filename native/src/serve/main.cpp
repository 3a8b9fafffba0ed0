// rouse-executor: the executor of one device.
#include "rouse/serve/executor_main.h"
#include "torch_backend.h"

int main(int argc, char** argv, char** environment) {
  return rouse::serve::executor_main(
      argc, argv, environment, [](const rouse::serve::Config& config) { return rouse::serve::make_torch_backend(config); });
}
