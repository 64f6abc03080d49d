# quarot_room(NAME SOURCES a.cc ... [TESTS a_test.cc ...] [LIBRARIES pkg::target ...])
#
# Adds the sources of one room to the library and, with QUAROT_TESTS, one test program <NAME>_test
# whose cases ctest lists one by one.
function(quarot_room name)
  cmake_parse_arguments(arg "" "" "SOURCES;TESTS;LIBRARIES" ${ARGN})
  add_library(quarot_${name} OBJECT ${arg_SOURCES})
  target_link_libraries(quarot_${name} PRIVATE quarot_options ${arg_LIBRARIES})
  target_sources(quarot PRIVATE $<TARGET_OBJECTS:quarot_${name}>)
  if(QUAROT_TESTS AND arg_TESTS)
    quarot_test(${name}_test SOURCES ${arg_TESTS} LIBRARIES ${arg_LIBRARIES})
  endif()
  # Headers alone leave nothing to link: who uses the installed library does not need them.
  list(REMOVE_ITEM arg_LIBRARIES Eigen3::Eigen nlohmann_json::nlohmann_json)
  target_link_libraries(quarot PRIVATE ${arg_LIBRARIES})
endfunction()

# quarot_test(NAME SOURCES ... [LIBRARIES ...]): a GoogleTest program linked against the library.
function(quarot_test name)
  include(GoogleTest)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE quarot quarot_options GTest::gtest_main rapidcheck
                                        ${arg_LIBRARIES})
  target_compile_definitions(${name} PRIVATE QUAROT_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 900)
endfunction()
