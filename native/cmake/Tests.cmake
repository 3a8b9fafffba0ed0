# GoogleTest as the system or ROUSE_GTEST_DIR has it.
if(ROUSE_GTEST_DIR)
  list(PREPEND CMAKE_PREFIX_PATH ${ROUSE_GTEST_DIR})
endif()
find_package(GTest REQUIRED)

# rouse_test(NAME SOURCES... LIBS...): a test program, known to ctest.
function(rouse_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE rouse_options ${arg_LIBS} GTest::gtest GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 120)
endfunction()
