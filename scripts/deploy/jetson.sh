#!/usr/bin/env bash
# Installs edgespec on an NVIDIA Jetson (JetPack 6 or newer), with llama.cpp on its GPU, as a service of systemd.
#
#   scripts/deploy/jetson.sh             on this board, with sudo
#   scripts/deploy/jetson.sh USER@HOST   on that board, over SSH, from any Linux machine with this checkout
#
#   --pair NAME        the models to fetch and to serve (else smollm2-135m)
#   --source SOURCE    where they are fetched from: hub (the default) or packages
#   --board NAME       build for orin or thor, whatever this machine says it is
#   --update           replaces the installed version by this checkout; goes back if that does not work
#   --uninstall        removes all but the models; with --purge, the models, too
#   --dry-run          shows what would be done, and changes nothing
set -euo pipefail
# shellcheck source=scripts/deploy/common.sh
. "$(dirname "$0")/common.sh"

boards="orin (Orin Nano, Orin NX, AGX Orin), thor"
nvcc=/usr/local/cuda/bin/nvcc

# Older ones have JetPack 5 at most, with Python 3.8 and a compiler that does not build our kernels.
board_of() {
  case $1 in
    *Orin*) echo orin ;;
    *Thor*) echo thor ;;
  esac
}

# The toolkit by its version's path, so that another one after an update of JetPack means another build.
llama_options() {
  local gpu cpu
  case $1 in
    orin) gpu=87 cpu=armv8.2-a+dotprod+fp16 ;;       # Cortex-A78AE
    thor) gpu=110 cpu=armv8.2-a+dotprod+fp16+i8mm ;; # Neoverse V3AE
    *) fail "the board $1 is none of: $boards" ;;
  esac
  echo "-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=$gpu -DCMAKE_CUDA_COMPILER=$(readlink -m "$nvcc")" \
    "-DGGML_NATIVE=OFF -DGGML_CPU_ARM_ARCH=$cpu"
}

# Neither DevicePolicy nor MemoryDenyWriteExecute: the GPU is reached through device files, whose names
# differ between releases of JetPack (the groups of the user decide), and CUDA may compile at run time.
unit_of_board() { :; }

user_groups() { echo video,render; }

check_board() {
  [ -x "$nvcc" ] ||
    fail "CUDA's compiler is not here ($nvcc); NVIDIA's packages bring it: apt-get install nvidia-jetpack"
}

# Without a GPU that it can use, llama.cpp computes on the processor and says nothing.
check_build() {
  as_user "$1" -c 'import sys, llama_cpp; sys.exit(not llama_cpp.llama_supports_gpu_offload())' ||
    { echo "llama.cpp finds no GPU that it can use" >&2; return 1; }
}

deploy "$@"
