#!/usr/bin/env bash
# usage: setup_system.sh build|test|report|bench|docs|fuzz|aarch64...
# Looks for what no wheel can bring (compiler, headers, ...), installs what is missing through apt where that is
# allowed without a question, and otherwise prints the one line to run and fails.
set -euo pipefail
cd "$(dirname "$0")/.."

# Whether the compiler takes the C++20 and the header that the engine needs.
compiles() {
  echo "$1" | "${CXX:-g++}" -std=c++20 -fsyntax-only -x c++ - 2>/dev/null
}

missing=()
unmet=()
want() { missing+=("$@"); }

check_build() {
  if ! compiles '#include <bit>
      #include <concepts>
      #include <span>
      static_assert(__cplusplus > 201703L);'; then
    if command -v "${CXX:-g++}" >/dev/null; then
      unmet+=("a compiler for C++20: g++ 11 or clang++ 16, or newer (CXX=... names it)")
    fi
    want g++
  elif ! compiles '#include <nlohmann/json.hpp>'; then
    want nlohmann-json3-dev
  fi
  compiles '#include <isa-l/crc.h>' || want libisal-dev
  compiles '#include <libdeflate.h>' || want libdeflate-dev
  compiles '#include <sodium.h>' || want libsodium-dev
  compiles '#include <openssl/ssl.h>' || want libssl-dev
  # libjpeg-turbo's own: other libjpegs cannot decode a part of a row.
  compiles '#include <cstdio>
      #include <jpeglib.h>
      auto* crop = &jpeg_crop_scanline;' || want libjpeg-dev
  compiles '#include <png.h>' || want libpng-dev
  compiles '#include <webp/demux.h>' || want libwebp-dev
  command -v g++ >/dev/null || command -v "${CXX:-g++}" >/dev/null || want nlohmann-json3-dev
  local python
  python=$(tools/find_python.sh)
  if [ -z "$python" ]; then
    command -v python3 >/dev/null && unmet+=("Python 3.10 or newer (PYTHON=... names it)")
    want python3 python3-dev python3-venv
    return
  fi
  "$python" - <<'P' || python_packages "$python"
import os, sys, sysconfig
try:
    import ensurepip, venv
except ImportError:
    sys.exit(1)
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))
P
}

python_packages() {
  local name
  name=$("$1" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  case $("$1" -c 'import sys; print(sys.base_prefix)') in
    /usr) want "$name-dev" "$name-venv" ;;
    *) unmet+=("$1 with its headers (Python.h) and the modules venv and ensurepip") ;;
  esac
}

check_test() {
  compiles '#include <gtest/gtest.h>' || want libgtest-dev
  PATH=$PATH:/usr/sbin command -v mosquitto >/dev/null || want mosquitto
  command -v openssl >/dev/null || want openssl
}

# A browser that can load a page without a display, for the test that looks at report.html.
check_report() {
  local browser
  for browser in chromium chromium-browser google-chrome; do
    command -v "$browser" >/dev/null && return
  done
  want chromium
}

# Redis: its server goes by several names, of which this package has one and starts nothing.
# libmosquitto: for the peers that are written in C.
check_bench() {
  command -v redis-server >/dev/null || command -v redis-check-rdb >/dev/null || want redis-tools
  PATH=$PATH:/usr/sbin command -v mosquitto >/dev/null || want mosquitto
  compiles '#include <mosquitto.h>' || want libmosquitto-dev
}

check_docs() {
  command -v doxygen >/dev/null || want doxygen
}

# Clang has libFuzzer.
check_fuzz() {
  local libraries
  libraries=$(clang++-16 -print-resource-dir 2>/dev/null)/lib/linux
  compgen -G "$libraries/libclang_rt.fuzzer-*" >/dev/null || want clang-16 libclang-rt-16-dev
}

check_aarch64() {
  command -v aarch64-linux-gnu-g++ >/dev/null || want g++-aarch64-linux-gnu
  command -v qemu-aarch64 >/dev/null || want qemu-user
}

for group in "$@"; do "check_$group"; done
if [ ${#missing[@]} -eq 0 ] && [ ${#unmet[@]} -eq 0 ]; then exit 0; fi

if [ ${#unmet[@]} -eq 0 ] && command -v apt-get >/dev/null; then
  mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
  as_root=()
  if [ "$(id -u)" != 0 ]; then as_root=(sudo -n); fi
  if "${as_root[@]}" true 2>/dev/null; then
    echo "penstock: installing ${missing[*]}"
    "${as_root[@]}" apt-get -q update
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get -q install -y --no-install-recommends "${missing[@]}" </dev/null
    exit 0
  fi
  echo "penstock needs packages of the system. Run this, then the same make again:" >&2
  echo "  sudo apt-get install ${missing[*]}" >&2
  exit 1
fi
echo "penstock needs, and this machine does not have:" >&2
if [ ${#unmet[@]} -gt 0 ]; then printf '  %s\n' "${unmet[@]}" >&2; fi
if [ ${#unmet[@]} -eq 0 ]; then printf '  %s (as Debian calls it)\n' "${missing[@]}" >&2; fi
exit 1
