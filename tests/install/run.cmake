# Installs the build into an empty folder, builds the program beside this file against it, and runs
# both. Needs: BUILD (the build folder), VERSION, COMPILER, FLAGS.
set(prefix ${BUILD}/install-test/prefix)
set(program ${BUILD}/install-test/program)
file(REMOVE_RECURSE ${BUILD}/install-test)

function(run)
  execute_process(COMMAND ${ARGV} OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  set(output "${output}" PARENT_SCOPE)
endfunction()
function(expect_version)
  run(${ARGV})
  if(NOT output STREQUAL "${VERSION}\n")
    message(FATAL_ERROR "${ARGV} printed \"${output}\", expected ${VERSION}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${program} -G Ninja -D CMAKE_PREFIX_PATH=${prefix}
    -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_CXX_FLAGS=${FLAGS})
run(${CMAKE_COMMAND} --build ${program})
expect_version(${program}/uses_quarot)
expect_version(${prefix}/bin/quarot --version)
foreach(file IN ITEMS bash-completion/completions/quarot zsh/site-functions/_quarot)
  file(STRINGS ${prefix}/share/${file} names REGEX "inspect.* eval ")
  if(NOT names)
    message(FATAL_ERROR "${prefix}/share/${file} knows no commands")
  endif()
endforeach()
