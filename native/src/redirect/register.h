#pragma once

namespace rouse::redirect {

// Names PrivateUse1 "rouse" and registers all kernels. Calling it again does nothing.
void register_backend();

}  // namespace rouse::redirect
