# Warnings, sanitizers and the include path, as one interface target that every target of ours links.
find_package(Threads REQUIRED)
add_library(rouse_options INTERFACE)
target_include_directories(rouse_options INTERFACE ${PROJECT_SOURCE_DIR}/include)
target_compile_options(rouse_options INTERFACE -Wall -Wextra)
# Errors where the core is developed; a compiler that we never saw may warn of more, which shall stop nobody's setup.
if(ROUSE_WERROR)
  target_compile_options(rouse_options INTERFACE -Werror)
endif()
target_link_libraries(rouse_options INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
if(ROUSE_SANITIZE)
  target_compile_options(rouse_options INTERFACE -fsanitize=${ROUSE_SANITIZE} -fno-omit-frame-pointer -g)
  target_link_options(rouse_options INTERFACE -fsanitize=${ROUSE_SANITIZE})
endif()
