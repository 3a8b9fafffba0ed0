// The executor's program around a trivial device.
#include "echo_backend.h"
#include "rouse/serve/executor_main.h"

int main(int argc, char** argv, char** environment) {
  return rouse::serve::executor_main(argc, argv, environment, [](const rouse::serve::Config& config) {
    return rouse::Result<std::unique_ptr<rouse::serve::Backend>>(
        std::make_unique<rouse::serve::testing::EchoBackend>(config.capacity_mib << 20));
  });
}
