# Embeds the report page's files in the library as string_views, so that they can be edited as files.
# Included by penstock/CMakeLists.txt, and run as a script by the build.
if(CMAKE_SCRIPT_MODE_FILE)
  set(source "// Made from penstock/observe/page/ by page.cmake: edit the files there.\n")
  string(APPEND source "#include <string_view>\n\nnamespace penstock::page {\n")
  foreach(file report.html report.css report.js timeline.js)
    string(REPLACE "." "_" name ${file})
    file(READ "${PAGE_DIR}/${file}" text)
    string(APPEND source "\nstd::string_view ${name}() {\n  return R\"~page~(")
    string(APPEND source "${text}" ")~page~\";\n}\n")
  endforeach()
  string(APPEND source "\n}  // namespace penstock::page\n")
  file(WRITE "${OUTPUT}" "${source}")
  return()
endif()

set(PENSTOCK_PAGE_DIR "${CMAKE_CURRENT_LIST_DIR}/page")
set(PENSTOCK_PAGE_SOURCE "${CMAKE_CURRENT_BINARY_DIR}/observe/page.cc")
add_custom_command(
  OUTPUT "${PENSTOCK_PAGE_SOURCE}"
  COMMAND "${CMAKE_COMMAND}" "-DPAGE_DIR=${PENSTOCK_PAGE_DIR}" "-DOUTPUT=${PENSTOCK_PAGE_SOURCE}"
          -P "${CMAKE_CURRENT_LIST_DIR}/page.cmake"
  DEPENDS "${PENSTOCK_PAGE_DIR}/report.html" "${PENSTOCK_PAGE_DIR}/report.css"
          "${PENSTOCK_PAGE_DIR}/report.js" "${PENSTOCK_PAGE_DIR}/timeline.js"
          "${CMAKE_CURRENT_LIST_DIR}/page.cmake"
  COMMENT "The report page"
  VERBATIM)
target_sources(penstock PRIVATE "${PENSTOCK_PAGE_SOURCE}")
