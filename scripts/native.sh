# shellcheck shell=bash
# Sourced by scripts/test and .ci/run after setup.sh: the native kernels by themselves, under sanitizers
# and emulators.

# Whether compiler and emulator for Arm are there. As root, Debian's packages of them are installed first.
emulation_ready() {
  local missing=()
  command -v cmake >/dev/null || missing+=(cmake)
  command -v qemu-aarch64-static >/dev/null || missing+=(qemu-user-static)
  [ "$(uname -m)" = aarch64 ] || command -v aarch64-linux-gnu-g++ >/dev/null || missing+=(g++-aarch64-linux-gnu)
  [ ${#missing[@]} -gt 0 ] || return 0
  install_packages "${missing[@]}"
}

# build_native FOLDER [ARGUMENTS OF CMAKE]: the library and the native program of tests/kernels.
build_native() {
  local folder=$1
  shift
  mkdir -p "$folder"
  if ! {
    cmake -S "${root:?}/edgespec/kernels" -B "$folder" -DEDGESPEC_TESTS=ON "$@" &&
      cmake --build "$folder" --parallel "$(nproc)"
  } >"$folder/log" 2>&1; then
    tail -n 30 "$folder/log" >&2
    fail "the kernels did not build; the whole log: $folder/log"
  fi
}

# test_sanitized VENV [ARGUMENTS OF PYTEST]: the kernels with every access to memory and every undefined
# operation checked.
test_sanitized() {
  local venv=$1 folder=$root/build/sanitized libraries='' name
  shift
  if ! command -v cmake >/dev/null; then
    "$venv/bin/python" -m pip install -q cmake
    PATH=$venv/bin:$PATH
  fi
  say "building the kernels with sanitizers"
  build_native "$folder" -DEDGESPEC_SANITIZE=ON
  for name in libasan.so libubsan.so libstdc++.so; do # Python itself is built without
    libraries+=" $(readlink -f "$(compiler -print-file-name=$name)")"
  done
  say "tests of the kernels under AddressSanitizer and UndefinedBehaviorSanitizer"
  "$folder/native_check"
  # Leaks are not looked for: Python does not give back all its memory at its end.
  EDGESPEC_KERNELS=$folder/libedgespec_ort.so LD_PRELOAD=${libraries# } EDGESPEC_REQUIRE_MODELS=kernels \
    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
    "$venv/bin/python" -m pytest "$root/tests/kernels" "$@"
}

# The native program here, and emulated on processors that are not; each must take the path meant for it.
test_emulated() {
  local folder=$root/build arm=(qemu-aarch64-static -L /usr/aarch64-linux-gnu) arguments=()
  if [ "$(uname -m)" = x86_64 ]; then
    say "the kernels on this processor, and on emulated ones without its instructions"
    build_native "$folder/x86_64"
    "$folder/x86_64/native_check"
    on_processor scalar qemu-x86_64-static -cpu Nehalem "$folder/x86_64/native_check"
    on_processor avx2 qemu-x86_64-static -cpu Haswell "$folder/x86_64/native_check"
    arguments=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64
      -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++)
  fi
  say "the kernels on emulated Arm processors"
  build_native "$folder/aarch64" "${arguments[@]}"
  on_processor neon "${arm[@]}" -cpu cortex-a72 "$folder/aarch64/native_check"
  on_processor dotprod "${arm[@]}" -cpu cortex-a76 "$folder/aarch64/native_check"
  on_processor i8mm "${arm[@]}" -cpu max "$folder/aarch64/native_check"
}

# on_processor PATH EMULATOR... PROGRAM
on_processor() {
  local wanted=$1 found
  shift
  found=$("$@" --best 2>/dev/null) || fail "it does not run: $*"
  [ "$found" = "$wanted" ] || fail "it takes the path $found, not $wanted: $*"
  "$@" 2>/dev/null
}
