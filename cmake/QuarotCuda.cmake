# The CUDA toolkit, and how a folder of kernels is built.
#
# CMake 3.25 knows no C++20 for CUDA.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
set(QUAROT_CUDA_ARCHITECTURES "80-real;90a-real" CACHE STRING "GPU architectures, as CMAKE_CUDA_ARCHITECTURES")
set(CMAKE_CUDA_ARCHITECTURES ${QUAROT_CUDA_ARCHITECTURES})
find_program(CMAKE_CUDA_COMPILER nvcc HINTS /usr/local/cuda/bin REQUIRED)
enable_language(CUDA)
find_package(CUDAToolkit 13 REQUIRED)
list(APPEND CMAKE_BUILD_RPATH ${CUDAToolkit_LIBRARY_DIR})  # where cuBLAS is looked for, too

# What every CUDA target is compiled with. fmt 9, left alone, gives up constexpr under nvcc but keeps
# consteval, which then cannot compile. 554: a view of const T never converts itself; 20208: long
# double is double.
function(quarot_cuda_target target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${target} PRIVATE fmt::fmt CUDA::cudart_static)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:$<TARGET_PROPERTY:quarot_options,INTERFACE_COMPILE_OPTIONS>>")
  target_compile_definitions(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--diag-suppress=554,20208;-Xcompiler=-Wall;--Werror=all-warnings>)
endfunction()

# quarot_cuda_kernels(NAME SOURCES a.cu b.cc ... [TEST t.cu u.cu ...] [BENCH b.cu]): one folder's
# kernels, into the library, the test cuda_<NAME>_test and the benchmark cuda_<NAME>_bench.
function(quarot_cuda_kernels name)
  cmake_parse_arguments(arg "" "BENCH" "SOURCES;TEST" ${ARGN})
  add_library(quarot_cuda_${name} OBJECT ${arg_SOURCES})
  quarot_cuda_target(quarot_cuda_${name})
  target_sources(quarot PRIVATE $<TARGET_OBJECTS:quarot_cuda_${name}>)
  if(QUAROT_TESTS)
    include(GoogleTest)
    foreach(kind IN ITEMS TEST BENCH)
      if(arg_${kind})
        string(TOLOWER cuda_${name}_${kind} program)
        add_executable(${program} ${arg_${kind}})
        quarot_cuda_target(${program})
        target_link_libraries(${program} PRIVATE quarot)
      endif()
    endforeach()
    if(arg_TEST)
      target_link_libraries(cuda_${name}_test PRIVATE GTest::gtest_main)
      gtest_discover_tests(cuda_${name}_test DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 900)
    endif()
  endif()
endfunction()
