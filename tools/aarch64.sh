#!/usr/bin/env bash
# Builds the engine and its C++ tests for aarch64 on x86-64 (Debian, Ubuntu) and runs the tests in qemu. The libraries
# are unpacked under build/aarch64, not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup_system.sh aarch64
work=$PWD/build/aarch64
if [ ! -e "$work/done" ]; then
  rm -rf "$work"
  mkdir -p "$work"/{root,lists/partial,cache/archives/partial,packages}
  options=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State::Lists=$work/lists"
    -o "Dir::Cache=$work/cache" -o Dir::State::status=/dev/null -o "APT::Sandbox::User=$(id -un)")
  apt-get "${options[@]}" update
  (cd "$work/packages" && apt-get "${options[@]}" download libisal-dev libisal2 libdeflate-dev libdeflate0 libsodium-dev \
    libsodium23 libssl-dev \
    libssl3 libjpeg62-turbo-dev libjpeg62-turbo libpng-dev libpng16-16 libwebp-dev libwebp7 libwebpdemux2 zlib1g-dev zlib1g libgtest-dev googletest \
    nlohmann-json3-dev)
  for package in "$work"/packages/*.deb; do dpkg -x "$package" "$work/root"; done
  touch "$work/done"
fi
cmake --preset aarch64
cmake --build --preset aarch64

# What asks the kernel about memory is answered by qemu: it does not populate pages, counts its own memory, and takes
# minutes for a mapping of half a terabyte.
emulated='^Memory\.(a_reservation_may_be_larger_than_the_machine|the_limits_are_read_without_memory_too)$'
emulated+='|^Memory\.populating_beyond_the_end_of_a_file_is_an_errno_and_no_signal$|^Machine\.figures_are_plausible$'
ctest --preset aarch64 --parallel "$(nproc)" --exclude-regex "$emulated" "$@"
