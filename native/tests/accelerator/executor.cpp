// rouse-executor on the stand-in: the whole program on a device whose memory it may not touch. For tests/native.
#include "device.h"
#include "rouse/serve/executor_main.h"
#include "stand_in.h"
#include "torch_backend.h"

int main(int argc, char** argv, char** environment) {
  using namespace rouse;
  return serve::executor_main(
      argc, argv, environment, [](const serve::Config& config) -> Result<std::unique_ptr<serve::Backend>> {
        auto device = accelerator::make_device(config.capacity_mib << 20);
        if (!device.ok()) return device.status();
        auto compute = executor::Compute::make(accelerator::stand_in());
        if (!compute.ok()) return compute.status();
        return serve::make_torch_backend(config, {compute.value(), std::move(device).value()});
      });
}
