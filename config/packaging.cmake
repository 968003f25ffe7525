# SPDX-License-Identifier: Apache-2.0
# Debian packages by `make deb` (CPack), one a component of the install rules. The library's package carries the
# SONAME's number. What only belongs into a package (absolute paths) is excluded from a plain install.
get_target_property(soversion zipccl_shared SOVERSION)
set(ZIPCCL_DEB_LIB libzipccl${soversion})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME zipccl)
set(CPACK_PACKAGE_CONTACT "zipccl maintainers <root@localhost>" CACHE STRING "maintainer named by the packages")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "losslessly compressed collectives for LLM training")
set(CPACK_COMPONENTS_ALL daemon lib dev)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_STRIP_FILES ON)
# Under DESTDIR, so that /etc is /etc and all else is below /usr, whatever the build's own prefix is.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(scripts "")
foreach(script postinst prerm postrm conffiles)
  list(APPEND scripts ${CMAKE_CURRENT_LIST_DIR}/debian/${script})
endforeach()

set(CPACK_DEBIAN_DAEMON_PACKAGE_NAME zipccl)
set(CPACK_DEBIAN_DAEMON_PACKAGE_SECTION net)
set(CPACK_DEBIAN_DAEMON_PACKAGE_DEPENDS passwd)
set(CPACK_DEBIAN_DAEMON_PACKAGE_RECOMMENDS systemd)
set(CPACK_DEBIAN_DAEMON_PACKAGE_CONTROL_EXTRA "${scripts}")
set(CPACK_COMPONENT_DAEMON_DESCRIPTION "Daemon and zipcclctl: one zipccld runs on each node and serves its trainers; zipcclctl shows what it does. With
 systemd units, the configuration, and drop-ins for GPU and RDMA nodes in /usr/share/zipccl/systemd.")

set(CPACK_DEBIAN_LIB_PACKAGE_NAME ${ZIPCCL_DEB_LIB})
set(CPACK_DEBIAN_LIB_PACKAGE_SECTION libs)
# What other packages that link it depend on; ldconfig by dpkg's trigger.
file(WRITE ${CMAKE_BINARY_DIR}/debian/shlibs "libzipccl ${soversion} ${ZIPCCL_DEB_LIB} (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_LIB_PACKAGE_CONTROL_EXTRA ${CMAKE_BINARY_DIR}/debian/shlibs ${CMAKE_CURRENT_LIST_DIR}/debian/triggers)
set(CPACK_COMPONENT_LIB_DESCRIPTION "Library, which a trainer links: collectives over the zipccld of its node.")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libzipccl-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "${ZIPCCL_DEB_LIB} (= ${PROJECT_VERSION}-1), libprotobuf-c-dev")
set(CPACK_COMPONENT_DEV_DESCRIPTION "Development files: headers, the static library, pkg-config and CMake files of libzipccl.")
# The daemon's module for GPUs. CUDA's runtime comes in packages of many names, or in none.
if(ZIPCCL_HAVE_CUDA)
  list(APPEND CPACK_COMPONENTS_ALL cuda)
  set(CPACK_DEBIAN_CUDA_PACKAGE_NAME zipccl-cuda)
  set(CPACK_DEBIAN_CUDA_PACKAGE_SECTION net)
  set(CPACK_DEBIAN_CUDA_PACKAGE_SHLIBDEPS OFF)
  set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "zipccl (= ${PROJECT_VERSION}-1), libxxhash0, libstdc++6")
  set(CPACK_COMPONENT_CUDA_DESCRIPTION "GPU module of zipccld: works on the memory of NVIDIA GPUs. Wants libcudart.so.13, which NVIDIA's packages bring, and
 the driver; without them zipccld serves host memory, and says so.")
endif()
include(CPack)
