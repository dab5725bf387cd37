# shellcheck shell=bash
# Sourced by scripts/test, scripts/aarch64 and .ci/run after setup.sh: edgespec on emulated Arm processors.
#
# $arm/root        Debian's Python for Arm, with no more than it needs; nothing in it was run to install it
# $arm/system      a Debian for Arm, installed under emulation, for scripts/deploy/trial.sh
# $arm/CPU         the root as a board with that processor has it
# $arm/packages    edgespec with its kernels, llama.cpp, and what they need
# arm_python       runs it: QEMU_CPU=cortex-a72 (a Pi 4's processor) or cortex-a76 (a Pi 5's)

arm=${cache:?}/aarch64
arm_python=$arm/root/usr/bin/python

# What makes CMake and pip build for Arm.
arm_compiler=(CC=aarch64-linux-gnu-gcc CXX=aarch64-linux-gnu-g++ _PYTHON_HOST_PLATFORM=linux-aarch64)
arm_cmake="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64"

# Whether compiler, emulator and the installer of Debian are there. As root, they are installed first.
aarch64_ready() {
  local missing=()
  command -v cmake >/dev/null || missing+=(cmake)
  command -v ninja >/dev/null || missing+=(ninja-build)
  command -v qemu-aarch64-static >/dev/null || missing+=(qemu-user-static)
  command -v mmdebstrap >/dev/null || missing+=(mmdebstrap)
  command -v aarch64-linux-gnu-g++ >/dev/null || missing+=(g++-aarch64-linux-gnu)
  [ ${#missing[@]} -gt 0 ] || return 0
  install_packages "${missing[@]}"
}

# fetch_debian FOLDER OPTIONS: Debian for Arm, with mmdebstrap's options.
fetch_debian() {
  local folder=$1
  shift
  rm -rf --one-file-system "$folder" # one that was killed left /dev/shm mounted in it
  mkdir -p "$arm"
  mmdebstrap --quiet --architectures=arm64 "$@" bookworm "$folder" 2>"$arm/log" ||
    { cat "$arm/log" >&2; fail "Debian for Arm was not fetched"; }
}

# A Python for Arm that runs here like any other, and starts itself.
make_arm_root() {
  local new=$arm/root.new
  [ ! -x "$arm_python" ] || return 0
  say "fetching Debian's Python for Arm"
  fetch_debian "$new" --variant=extract --include=python3,libgomp1,libstdc++6
  cat >"$new/usr/bin/python" <<PYTHON
#!/bin/sh
exec qemu-aarch64-static -L "$arm/\$QEMU_CPU" -0 "\$0" "$arm/root/usr/bin/python3.11" "\$@"
PYTHON
  chmod +x "$new/usr/bin/python"
  rm -rf "$arm/root"
  mv "$new" "$arm/root"
}

make_boards() {
  make_board cortex-a72 0xd08 "fp asimd evtstrm crc32 cpuid"
  make_board cortex-a76 0xd0b "fp asimd evtstrm crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
}

# make_board CPU PART FEATURES: the emulator shows programs the files here in place of the machine's own.
# ONNX Runtime and edgespec read what processor it is; the former crashes over that of an x86.
make_board() {
  local board=$arm/$1 i
  mkdir -p "$board/proc"
  ln -sfn ../root/usr "$board/usr"
  ln -sfn ../root/lib "$board/lib"
  for ((i = 0; i < $(nproc); i++)); do
    printf 'processor\t: %s\nFeatures\t: %s\nCPU implementer\t: 0x41\nCPU architecture: 8\n' "$i" "$3"
    printf 'CPU variant\t: 0x0\nCPU part\t: %s\nCPU revision\t: 3\n\n' "$2"
  done >"$board/proc/cpuinfo"
}

# prepare_aarch64 VENV: compiles edgespec and, once, llama.cpp, with which even ONNX models read text; installs them.
prepare_aarch64() {
  local venv=$1 kernels llama
  make_venv "$venv"
  make_arm_root
  make_boards
  say "compiling edgespec's kernels for Arm"
  rm -rf "$arm/wheels"
  env "${arm_compiler[@]}" CMAKE_ARGS="$arm_cmake" "$venv/bin/python" -m pip wheel -q --no-deps \
    --wheel-dir "$arm/wheels" --config-settings build-dir="$arm/kernels" "${root:?}"
  kernels=$(wheel_in "$arm/wheels")
  llama=$(arm_llama_wheel "$venv/bin/python")
  say "installing edgespec for Arm"
  rm -rf "$arm/packages"
  "$venv/bin/python" -m pip install -q --target "$arm/packages" --only-binary=:all: --python-version 3.11 \
    --implementation cp --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
    --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 --platform linux_aarch64 \
    "$llama" "${kernels}[llama,onnx]" pytest hypothesis scipy
}

# Prints the wheel of llama-cpp-python for any 64-bit Arm, compiling it if there is none. In a third of the time
# that a fast one takes: with few large files instead of many small ones, few optimizations, and no programs.
arm_llama_wheel() (
  export "${arm_compiler[@]}" CMAKE_ARGS
  CMAKE_ARGS="$arm_cmake -DGGML_NATIVE=OFF -DGGML_CPU_ARM_ARCH=armv8-a -DLLAVA_BUILD=OFF"
  CMAKE_ARGS+=" -DCMAKE_C_FLAGS_RELEASE='-O1 -DNDEBUG' -DCMAKE_CXX_FLAGS_RELEASE='-O1 -DNDEBUG'"
  CMAKE_ARGS+=" -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16"
  CMAKE_ARGS+=" '-DCMAKE_PROJECT_llama.cpp_INCLUDE=$arm/library.cmake'"
  mkdir -p "$arm"
  echo 'set(LLAMA_BUILD_COMMON OFF)' >"$arm/library.cmake" # what llama.cpp's programs share
  llama_wheel "$1"
)

# on_arm CPU ARGUMENTS OF PYTHON: with what is installed for Arm, whatever is in the folder it is called from.
on_arm() {
  local cpu=$1
  shift
  QEMU_CPU=$cpu PYTHONPATH=$arm/packages PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 "$arm_python" "$@"
}

# Exactness on ONNX Runtime with our kernels: of numbers and of what is sampled. On two processors at once, as
# each takes minutes.
test_aarch64() {
  local cpu failed=''
  say "tests on an emulated Cortex-A72 (Pi 4) and a Cortex-A76 (Pi 5)"
  test_on_board cortex-a72 neon "$@" >"$arm/cortex-a72/log" 2>&1 &
  test_on_board cortex-a76 dotprod "$@" >"$arm/cortex-a76/log" 2>&1 || failed=cortex-a76
  wait $! || failed+=" cortex-a72"
  for cpu in cortex-a72 cortex-a76; do
    say "$cpu"
    cat "$arm/$cpu/log"
  done
  [ -z "$failed" ] || fail "not as on this machine:${failed/#/ }"
}

# test_on_board CPU PATH [ARGUMENTS OF PYTEST]: with the kernels on the path meant for the processor.
test_on_board() (
  cpu=$1 wanted=$2 tests=(backends/test_onnx.py backends/test_onnx_opening.py decoding/test_exact_on_onnx.py)
  shift 2
  found=$(on_arm "$cpu" -c 'from edgespec.kernels import library; print(library.instruction_set())')
  [ "$found" = "$wanted" ] || fail "the kernels take the path $found, not $wanted"
  EDGESPEC_SAMPLES=500 EDGESPEC_REQUIRE_MODELS=kernels EDGESPEC_HOME=$arm/$cpu/home \
    on_arm "$cpu" -m pytest -p no:cacheprovider "${tests[@]/#/$root/tests/}" -k "test_onnx or both" "$@"
)

# Until stop_emulation the kernel starts programs for Arm as if they were this machine's. Needs root.
start_emulation() {
  local formats=/proc/sys/fs/binfmt_misc
  if [ ! -e "$formats/register" ]; then
    mount -t binfmt_misc binfmt_misc "$formats" || fail "this kernel starts no programs for other processors"
    emulation_mounted=$formats
  fi
  [ ! -e "$formats/qemu-aarch64" ] || return 0
  cat /usr/lib/binfmt.d/qemu-aarch64.conf >"$formats/register" # with the emulator open: a chroot needs none
  emulation=$formats/qemu-aarch64
}

# Leaves the kernel as start_emulation found it.
stop_emulation() {
  [ -z "${emulation:-}" ] || echo -1 >"$emulation"
  [ -z "${emulation_mounted:-}" ] || umount "$emulation_mounted"
}

# A whole Debian in which packages can be installed, with those that a board's system has and pi.sh takes for
# granted, and those that it installs, as this is slow. Needs start_emulation and root.
make_arm_system() {
  local new=$arm/system.new
  [ ! -d "$arm/system" ] || return 0
  say "installing Debian for Arm, emulated: minutes"
  fetch_debian "$new" --mode=root --variant=minbase --skip=check/qemu \
    --include=passwd,ca-certificates,python3-venv,python3-dev,build-essential
  [ -x "$new/usr/sbin/useradd" ] || fail "Debian for Arm lacks useradd: $new"
  mv "$new" "$arm/system"
}
