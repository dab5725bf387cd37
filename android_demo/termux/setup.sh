#!/usr/bin/env bash
# Sets edgespec up in Termux on an Android phone (64-bit Arm), then serves a model and opens the chat page.
#
#   android_demo/termux/setup.sh [--build] [--onnx] [--no-open] [PAIR] [SERVE_OPTION...]
#
#   --build    build llama.cpp on the phone, instead of using Termux's package
#   --onnx     also what --backend onnx needs; builds the packages onnx and tokenizers on the phone
#   --no-open  do not open the page in the browser
#
# PAIR is smollm2-135m unless it is given; SERVE_OPTION is for edgespec serve. Safe to run again: what is
# there is reused. EDGESPEC_VENV names the virtual environment (else ~/.edgespec-termux).
set -euo pipefail
shopt -s inherit_errexit

here=$(cd "$(dirname "$0")" >/dev/null && pwd -P)
root=$(cd "$here/../.." >/dev/null && pwd -P)
venv=${EDGESPEC_VENV:-$HOME/.edgespec-termux}
python=$venv/bin/python
llama_cpp_python=0.3.36 # one that edgespec_termux.py knows
cores=/sys/devices/system/cpu

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

build='' onnx='' open=1 pair='' options=()
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=1 ;;
    --onnx) onnx=1 ;;
    --no-open) open='' ;;
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;;
    -*) break ;;
    *) [ -z "$pair" ] || break; pair=$1 ;;
  esac
  shift
done
pair=${pair:-smollm2-135m}
options=("$@")

check_phone() {
  [[ -n ${TERMUX_VERSION:-} && -n ${PREFIX:-} ]] || fail "this is not Termux; elsewhere use scripts/demo"
  [ "$(uname -m)" = aarch64 ] || fail "Termux's llama.cpp needs a 64-bit Arm system, and this is $(uname -m)"
  case $root in
    /storage/* | /sdcard/* | /mnt/*)
      fail "$root is in shared storage, from which Android runs no programs; move it to Termux's home: $HOME"
      ;;
  esac
}

# Dependencies without hf-xet, an accelerator for downloads in Rust that huggingface-hub does without.
requirements() {
  "$python" - <<'PYTHON'
from importlib.metadata import PackageNotFoundError, requires, version
from pip._vendor.packaging.requirements import Requirement

apart = {"hf-xet", "huggingface-hub", "llama-cpp-python"}
packages = ("edgespec", ""), ("edgespec", "server"), ("huggingface-hub", ""), ("llama-cpp-python", "")
for package, extra in packages:
    for line in requires(package):
        wanted = Requirement(line)
        if wanted.name not in apart and (wanted.marker is None or wanted.marker.evaluate({"extra": extra})):
            print(f"{wanted.name}{wanted.specifier}")
try:  # pip then takes the pydantic that goes with Termux's, instead of building another one
    print(f"pydantic-core=={version('pydantic-core')}")
except PackageNotFoundError:
    pass
PYTHON
}

install_packages() {
  local packages=(python python-pip python-ensurepip-wheels python-numpy clang cmake ninja)
  [ -n "$build" ] || packages+=(llama-cpp)
  [ -z "$onnx" ] || packages+=(python-onnxruntime rust)
  # pydantic needs this; where Termux does not have it yet, pip builds it.
  apt-get update -qq
  if apt-cache show python-pydantic-core >/dev/null 2>&1; then
    packages+=(python-pydantic-core)
  else
    packages+=(rust)
  fi
  say "installing Termux's packages: ${packages[*]}"
  pkg install -y "${packages[@]}"
}

# The Python part of llama-cpp-python, and with --build its library, which takes long: only once.
install_bindings() {
  local kind=python
  [ -z "$build" ] || kind=library
  [ "$(cat "$venv/bindings" 2>/dev/null)" != "$llama_cpp_python $kind" ] || return 0
  say "installing llama-cpp-python $llama_cpp_python${build:+, building llama.cpp: this takes long}"
  CMAKE_ARGS="-DLLAMA_BUILD=$([ -n "$build" ] && echo ON || echo OFF)" "$python" -m pip install -q \
    --no-deps --no-cache-dir --force-reinstall "llama-cpp-python==$llama_cpp_python"
  echo "$llama_cpp_python $kind" >"$venv/bindings"
}

install_edgespec() {
  local site wanted
  if [ "$(cat "$venv/python" 2>/dev/null)" != "$(python --version)" ]; then
    python -m venv --clear --system-site-packages "$venv"
    python --version >"$venv/python"
  fi
  install_bindings
  say "installing edgespec (without hf-xet, which pip will say is missing: downloads do without)"
  EDGESPEC_NATIVE=$([ -n "$onnx" ] && echo 1 || echo 0) "$python" -m pip install -q --no-deps "$root" \
    "huggingface-hub>=0.34"
  wanted=$(requirements)
  # shellcheck disable=SC2086 # one requirement a word
  "$python" -m pip install -q $wanted
  if [ -n "$onnx" ]; then
    "$python" -m pip install -q --no-deps "tokenizers>=0.21"
    "$python" -m pip install -q "onnxruntime>=1.23" "onnx>=1.19" # the first is Termux's, if it is new enough
  fi
  site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  cp "$here/edgespec_termux.py" "$site"
  echo 'import edgespec_termux' >"$site/edgespec_termux.pth"
}

# What tells big cores from little ones is readable on most phones, and edgespec then finds them itself.
# Where it is not: half of the cores, as one little core holds up all others.
threads() {
  if ! grep -qs '[1-9]' "$cores"/cpu0/cpu_capacity "$cores"/cpu0/cpufreq/cpuinfo_max_freq; then
    echo $((($(nproc) + 1) / 2))
  fi
}

# Opens the page once the server answers, which it does not while the model is loaded. Becomes what opens it.
open_page() {
  exec "$python" - "$1" <<'PYTHON'
import os, sys, time, urllib.request
for _ in range(300):
    try:
        urllib.request.urlopen(sys.argv[1], timeout=5).close()
        os.execlp("termux-open-url", "termux-open-url", sys.argv[1])
    except OSError:
        time.sleep(1)
PYTHON
}

# What is installed depends on these.
state() {
  echo "$(python --version 2>&1) $llama_cpp_python build=$build onnx=$onnx"
  find "$root/edgespec" "$root/pyproject.toml" "$here" -type f ! -name '*.pyc' -exec cksum {} + | sort
}

# value_of OPTION: its value among the options for edgespec serve, if it is there.
value_of() {
  local i value=
  for ((i = 0; i < ${#options[@]}; i++)); do
    case ${options[i]} in
      "$1") value=${options[i + 1]-} ;;
      "$1="*) value=${options[i]#*=} ;;
    esac
  done
  echo "$value"
}

check_phone
if [ "$(cat "$venv/installed" 2>/dev/null)" != "$(state)" ]; then
  if [ -n "$(ls -A "$venv" 2>/dev/null)" ] && [ ! -f "$venv/pyvenv.cfg" ]; then
    fail "$venv is a folder with other things in it; set EDGESPEC_VENV to another one"
  fi
  install_packages
  install_edgespec
  state >"$venv/installed"
fi
[ -n "$build" ] || export LLAMA_CPP_LIB_PATH=$PREFIX/lib
if [ "$(value_of --backend)" != onnx ]; then
  "$python" -c 'from edgespec.backends.llama_library import llama; llama()' 2>"$venv/refusal" ||
    fail "$(tail -n 1 "$venv/refusal" | sed 's/^edgespec.errors.BackendError: //')
Termux's package is llama-cpp $(dpkg-query -W -f '${Version}' llama-cpp 2>/dev/null || echo '(not installed)')."
fi
"$venv/bin/edgespec" pull "$pair"

few=''
[ -n "$(value_of --threads)" ] || few=$(threads)
[ -z "$few" ] || say "this phone does not say which of its cores are big: $few threads (--threads N changes that)"
port=$(value_of --port)
address=http://127.0.0.1:${port:-8000}/

opener=
if [ -n "$open" ]; then
  open_page "$address" &
  opener=$!
fi
# Without the lock Android puts the processor to sleep when the screen is off.
termux-wake-lock
trap 'termux-wake-unlock; [ -z "$opener" ] || kill "$opener" 2>/dev/null || true' EXIT
say "the chat page: $address (Ctrl-C here ends the server)"
"$venv/bin/edgespec" serve "$pair" ${few:+--threads "$few"} "${options[@]}"
