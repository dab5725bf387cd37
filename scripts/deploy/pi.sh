#!/usr/bin/env bash
# Installs edgespec on a Raspberry Pi (64-bit system) as a service of systemd.
#
#   scripts/deploy/pi.sh             on this board, with sudo
#   scripts/deploy/pi.sh USER@HOST   on that board, over SSH, from any Linux machine with this checkout
#
#   --pair NAME        the models to fetch and to serve (else smollm2-135m)
#   --source SOURCE    where they are fetched from: hub (the default) or packages
#   --board NAME       build for pi3, pi4 or pi5, whatever this machine says it is
#   --update           replaces the installed version by this checkout; goes back if that does not work
#   --uninstall        removes all but the models; with --purge, the models, too
#   --dry-run          shows what would be done, and changes nothing
set -euo pipefail
# shellcheck source=scripts/deploy/common.sh
. "$(dirname "$0")/common.sh"

boards="pi3 (also Zero 2), pi4 (400, CM4), pi5 (500, CM5)"

board_of() {
  case $1 in
    "Raspberry Pi 5"* | "Raspberry Pi Compute Module 5"*) echo pi5 ;;
    "Raspberry Pi 4"* | "Raspberry Pi Compute Module 4"*) echo pi4 ;;
    "Raspberry Pi 3"* | "Raspberry Pi Compute Module 3"* | "Raspberry Pi Zero 2"*) echo pi3 ;;
  esac
}

# Named, not native: a build for a Pi 5 ends a Pi 4's process with an illegal instruction, and
# the same card may be put into either.
llama_options() {
  case $1 in
    pi3 | pi4) echo "-DGGML_NATIVE=OFF -DGGML_CPU_ARM_ARCH=armv8-a" ;;            # Cortex-A53, A72
    pi5) echo "-DGGML_NATIVE=OFF -DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod+fp16" ;; # Cortex-A76
    *) fail "the board $1 is none of: $boards" ;;
  esac
}

# vcgencmd asks the firmware through either file what slows the board down; nothing compiles at run time.
unit_of_board() {
  cat <<'LINES'
DevicePolicy=closed
DeviceAllow=/dev/vcio rw
DeviceAllow=/dev/vcio_gencmd rw
MemoryDenyWriteExecute=yes
LINES
}

user_groups() { echo video; }
check_board() { :; }
check_build() { :; }

deploy "$@"
