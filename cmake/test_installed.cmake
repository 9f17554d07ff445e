# cmake -D BUILD=<build folder> -D SOURCE=<source folder> -P test_installed.cmake
# Installs the build under a prefix of its own, then configures, builds and runs examples/cpp as a project that knows
# penstock only through find_package.
set(prefix ${BUILD}/installed/prefix)
set(project ${BUILD}/installed/examples)
file(REMOVE_RECURSE ${BUILD}/installed)
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed OUTPUT_VARIABLE text ERROR_VARIABLE text)
  message("${text}")
  if(failed)
    message(FATAL_ERROR "failed: ${ARGN}")
  endif()
endfunction()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix} --component engine)
run(${CMAKE_COMMAND} -S ${SOURCE}/examples/cpp -B ${project} -G Ninja
  -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${project})
run(${CMAKE_CTEST_COMMAND} --test-dir ${project} --output-on-failure --no-tests=error --timeout 60)
