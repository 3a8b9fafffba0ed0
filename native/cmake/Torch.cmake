# PyTorch as the Python environment has it: `rouse_torch` for code without Python, `rouse_torch_python` for bindings.
# Its own CMake package is not used: it looks for CUDA and protobuf, which code against libtorch_cpu does not need.
find_package(Python3 COMPONENTS Interpreter Development.Module REQUIRED)
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c "import torch, os; print(os.path.dirname(torch.__file__)); print(int(torch._C._GLIBCXX_USE_CXX11_ABI)); print(torch.__version__)"
  OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" found "${found}")
list(GET found 0 ROUSE_TORCH_DIR)
list(GET found 1 ROUSE_TORCH_ABI)
list(GET found 2 ROUSE_TORCH_VERSION)
message(STATUS "PyTorch ${ROUSE_TORCH_VERSION} in ${ROUSE_TORCH_DIR}")

add_library(rouse_torch INTERFACE)
# As system headers: our warnings are not for them.
target_include_directories(rouse_torch SYSTEM INTERFACE
  ${ROUSE_TORCH_DIR}/include ${ROUSE_TORCH_DIR}/include/torch/csrc/api/include)
target_compile_definitions(rouse_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${ROUSE_TORCH_ABI})
target_link_libraries(rouse_torch INTERFACE
  ${ROUSE_TORCH_DIR}/lib/libc10.so ${ROUSE_TORCH_DIR}/lib/libtorch_cpu.so)
target_link_options(rouse_torch INTERFACE -Wl,-rpath,${ROUSE_TORCH_DIR}/lib)

add_library(rouse_torch_python INTERFACE)
target_link_libraries(rouse_torch_python INTERFACE rouse_torch Python3::Module ${ROUSE_TORCH_DIR}/lib/libtorch_python.so)
