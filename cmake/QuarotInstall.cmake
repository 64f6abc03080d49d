# cmake --install: the public headers, the library, the program with its completions, and a package
# that find_package(quarot) finds.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/quarot)

install(TARGETS quarot quarot_cli EXPORT quarotTargets)
install(DIRECTORY include/quarot DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT quarotTargets NAMESPACE quarot:: DESTINATION ${package_dir})
configure_package_config_file(cmake/quarotConfig.cmake.in quarotConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(quarotConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/quarotConfig.cmake ${PROJECT_BINARY_DIR}/quarotConfigVersion.cmake
        DESTINATION ${package_dir})

# The program writes its own completions.
set(completions ${PROJECT_BINARY_DIR}/completions)
file(MAKE_DIRECTORY ${completions})
add_custom_command(OUTPUT ${completions}/quarot ${completions}/_quarot
                   COMMAND quarot_cli completion bash > ${completions}/quarot
                   COMMAND quarot_cli completion zsh > ${completions}/_quarot)
add_custom_target(completions ALL DEPENDS ${completions}/quarot ${completions}/_quarot)
install(FILES ${completions}/quarot DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${completions}/_quarot DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
