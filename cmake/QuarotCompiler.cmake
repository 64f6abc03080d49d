# One place for what every translation unit is compiled with.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# A program asks at start only for the libraries that it uses.
add_link_options(-Wl,--as-needed)

find_program(QUAROT_CCACHE ccache)
if(QUAROT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${QUAROT_CCACHE})
endif()

# A baseline every x86-64 machine of the last ten years has; faster paths are chosen at run time.
# -ffp-contract=off: the same float results with and without FMA, on every machine.
add_library(quarot_options INTERFACE)
target_compile_options(quarot_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
                                                -Wno-sign-conversion -ffp-contract=off -fno-math-errno)
target_include_directories(quarot_options INTERFACE ${PROJECT_SOURCE_DIR}/src
                                                    ${PROJECT_SOURCE_DIR}/include)
if(QUAROT_SANITIZE)
  add_compile_options(-fsanitize=${QUAROT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${QUAROT_SANITIZE})
endif()
