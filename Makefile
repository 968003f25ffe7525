# SPDX-License-Identifier: Apache-2.0
# Thin front of CMake. `make demo` and `make test` do all the set-up on a fresh Debian 12 machine.
JOBS ?= $(shell nproc)
# Some tests mostly wait: tests/CMakeLists.txt says how they share the processors.
CTEST := ctest --output-on-failure -j $(shell expr 2 \* $(JOBS))

.PHONY: help kernels-report setup build demo test check format format-check tidy asan tsan clang fuzz bench install deb clean

help:
	@echo "make demo     two node daemons and four trainers on this machine: a compressed all-gather of real tensors"
	@echo "make test     build and run the tests"
	@echo "make build    set up and build into build/ (programs in build/bin, libraries in build/lib)"
	@echo "make check    what else must be clean: format, clang-tidy, clang, ASan+UBSan, TSan"
	@echo "make fuzz     run every fuzz target for FUZZ_SECONDS (60) seconds"
	@echo "make kernels-report  registers, shared memory, occupancy and predicted speed of the GPU kernels (wants nvcc)"
	@echo "make deb      Debian packages into build/packages: zipccl, libzipccl0, libzipccl-dev"
	@echo "make install  install the build (DESTDIR and PREFIX are honoured)"

setup:
	@config/setup-debian.sh

build: setup
	@cmake --preset release $(if $(PREFIX),-DCMAKE_INSTALL_PREFIX=$(PREFIX)) >build.log 2>&1 || { cat build.log; exit 1; }
	@rm -f build.log
	cmake --build build -j $(JOBS)

demo: build
	tests/e2e/demo.sh build

test: build
	cd build && $(CTEST)

check: setup format-check clang asan tsan tidy

format:
	git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | xargs clang-format -i

format-check:
	config/setup-debian.sh --lint
	git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | xargs clang-format --dry-run -Werror
	git ls-files '*.sh' .ci/run | xargs shellcheck

tidy: build
	config/setup-debian.sh --lint
	git ls-files '*.c' | grep -v '^tests/' | xargs -P $(JOBS) -n 1 clang-tidy --quiet --extra-arg=-Wno-unknown-warning-option -p build

clang: build
	config/setup-debian.sh --lint
	tests/clang.py build $(JOBS)

asan tsan: setup
	cmake --preset $@ -DZIPCCL_CUDA=off -DZIPCCL_SIMT=off >/dev/null
	cmake --build build-$@ -j $(JOBS)
	cd build-$@ && $(CTEST) -LE 'slow$(if $(filter tsan,$@),|pure)'

FUZZ_SECONDS ?= 60
fuzz: setup
	config/setup-debian.sh --lint
	cmake --preset fuzz -DZIPCCL_SIMT=off >/dev/null
	cmake --build build-fuzz -j $(JOBS)
	tests/fuzz/run.sh build-fuzz $(FUZZ_SECONDS)

kernels-report:
	@if [ -f build/build.ninja ]; then cmake --build build --target ptx_codec_tier_bf16_90 ptx_codec_tier_fp32_90 ptx_codec_top7_e4m3_100; fi
	kernels/cuda/report.py

install: build
	cmake --install build $(if $(PREFIX),--prefix $(PREFIX))

deb: build
	cd build && cpack -G DEB -B packages
	rm -rf build/packages/_CPack_Packages

clean:
	rm -rf build build-asan build-tsan build-debug build-fuzz
