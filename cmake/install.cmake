# `cmake --install build`: the library, its headers, and what find_package(penstock) reads.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(PENSTOCK_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)
install(TARGETS penstock EXPORT penstockTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT engine)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/penstock DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT engine FILES_MATCHING PATTERN "*.h" REGEX "/penstock/torch$" EXCLUDE)
install(EXPORT penstockTargets NAMESPACE penstock:: DESTINATION ${PENSTOCK_CMAKE_DIR}
  COMPONENT engine)
if(PENSTOCK_TORCH)
  install(TARGETS penstock_torch EXPORT penstockTorchTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT engine)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/penstock/torch
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/penstock COMPONENT engine FILES_MATCHING PATTERN "*.h")
  install(EXPORT penstockTorchTargets NAMESPACE penstock:: DESTINATION ${PENSTOCK_CMAKE_DIR}
    COMPONENT engine)
endif()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/penstockConfig.cmake.in
  ${PROJECT_BINARY_DIR}/penstockConfig.cmake INSTALL_DESTINATION ${PENSTOCK_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/penstockConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/penstockConfig.cmake
  ${PROJECT_BINARY_DIR}/penstockConfigVersion.cmake ${CMAKE_CURRENT_LIST_DIR}/FindISAL.cmake
  ${CMAKE_CURRENT_LIST_DIR}/FindDeflate.cmake ${CMAKE_CURRENT_LIST_DIR}/FindSodium.cmake
  ${CMAKE_CURRENT_LIST_DIR}/FindWebP.cmake
  DESTINATION ${PENSTOCK_CMAKE_DIR} COMPONENT engine)
