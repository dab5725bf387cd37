# shellcheck shell=bash
# Sourced by scripts/demo and scripts/test: makes a virtual environment with edgespec in it.
#
# prepare VENV EXTRAS [CONSTRAINTS]: safe to run again; what is there is reused.
# llama.cpp is built from source once for this processor, compiler and CMAKE_ARGS, and its wheel kept
# in the user's cache folder.

shopt -s inherit_errexit 2>/dev/null || {
  echo "error: bash 4.4 or newer is needed, and a Mac's is older: docs/laptop.md says what to do there" >&2
  exit 1
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." >/dev/null && pwd)
llama_cpp_python=0.3.36
cache=${XDG_CACHE_HOME:-$HOME/.cache}/edgespec

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# The comment at the top of the script that was called.
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }

# $EDGESPEC_VENV or .venv, as an absolute path.
venv_path() {
  local venv=${EDGESPEC_VENV:-$root/.venv}
  [[ $venv == /* ]] || venv=$PWD/$venv
  echo "$venv"
}

# Python 3.10, which pyenv may hide behind a shim that refuses; nothing if there is none.
oldest_python() {
  local version=
  if python3.10 -c '' 2>/dev/null; then
    echo python3.10
  elif command -v pyenv >/dev/null; then
    version=$(pyenv versions --bare 2>/dev/null | grep '^3\.10\.[0-9]*$' | tail -n 1) || true
    [ -z "$version" ] || echo "$(pyenv root)/versions/$version/bin/python"
  fi
}

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.10; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
    [ "$candidate" != "${PYTHON:-}" ] || fail "PYTHON is $PYTHON, which is not Python 3.10 or newer"
  done
  fail "Python 3.10 or newer is needed; on Debian: apt-get install python3 python3-venv"
}

# Debian's packages, installed if we are root; whether they are there now.
install_packages() {
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing $*"
    if apt-get update -qq &&
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; then
      return 0
    fi
  fi
  echo "Debian's packages $* are not installed" >&2
  return 1
}

compiler() {
  # shellcheck disable=SC2086 # CXX may hold arguments
  ${CXX:-c++} "$@"
}

# GCC before 13 drops stores that set up AMX tiles (its _tile_loadconfig declares 8 of 64 bytes as
# read), and llama.cpp then crashes on processors with AMX: build without AMX there.
cmake_args() {
  local major flags='-mno-amx-tile -mno-amx-int8 -mno-amx-bf16'
  major=$(compiler -dumpversion | cut -d. -f1)
  if [[ $(compiler --version) == *'Free Software'* ]] && [ "$major" -lt 13 ] &&
    [[ $(compiler -dumpmachine) == x86_64* ]] && grep -qw amx_tile /proc/cpuinfo 2>/dev/null; then
    echo "-DCMAKE_C_FLAGS='$flags' -DCMAKE_CXX_FLAGS='$flags'"
  fi
}

# What a build of llama.cpp depends on, in a few characters.
wheel_key() {
  {
    compiler --version
    grep -m1 -E '^(flags|Features)' /proc/cpuinfo 2>/dev/null || uname -m
    cmake_args
    printf '%s\n' "${CMAKE_ARGS:-}" "${CC:-}" "${CXX:-}" "${CFLAGS:-}" "${CXXFLAGS:-}"
  } | sha256sum | cut -c1-12
}

wheel_in() {
  local wheels=("$1"/*.whl)
  [ -f "${wheels[0]}" ] && echo "${wheels[0]}"
}

# Prints the wheel of llama-cpp-python for this machine, building it if there is none.
llama_wheel() {
  local python=$1 folder lock
  compiler --version >/dev/null 2>&1 ||
    fail "a C++ compiler is needed; on Debian: apt-get install build-essential"
  folder=$cache/wheels/llama-cpp-python-$llama_cpp_python-$(wheel_key)
  if ! wheel_in "$folder" >/dev/null; then
    mkdir -p "$folder"
    exec {lock}>"$folder/lock"
    if command -v flock >/dev/null && ! flock -n "$lock"; then
      say "waiting for another process that builds llama.cpp"
      flock "$lock"
    fi
    wheel_in "$folder" >/dev/null || build_wheel "$python" "$folder" "$lock"
    exec {lock}>&-
  fi
  wheel_in "$folder"
}

# Builds llama-cpp-python into FOLDER. When this is interrupted the build is ended and nothing is left.
build_wheel() (
  python=$1 folder=$2 lock=$3
  say "building llama.cpp from source, once (about 4 minutes on 2 fast cores; far longer on a board or with CUDA)"
  build=$(mktemp -d) start=$SECONDS shown=0 pid=
  trap 'end_build "$pid"; rm -rf "$build"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  # A session of its own, so that compilers end with pip. The lock is not handed on.
  CMAKE_ARGS="${CMAKE_ARGS:-} $(cmake_args)" TMPDIR=$build \
    CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)} \
    $(command -v setsid) "$python" -m pip wheel -q --no-cache-dir --no-deps --wheel-dir "$build/wheel" \
    "llama-cpp-python==$llama_cpp_python" </dev/null >"$build/log" 2>&1 {lock}>&- &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1
    kill -0 $$ 2>/dev/null || exit # the script itself was killed
    if ((SECONDS - start >= shown + 30)); then
      shown=$((SECONDS - start))
      echo "    ... $shown s" >&2
    fi
  done
  if ! wait "$pid"; then
    pid=
    mv "$build/log" "$folder/build.log"
    tail -n 30 "$folder/build.log" >&2
    fail "llama.cpp did not build; the whole log: $folder/build.log"
  fi
  pid=
  wheel=$(wheel_in "$build/wheel")
  mv "$wheel" "$folder/incoming" # maybe from another disk
  sync "$folder/incoming" # what bears its name is whole after a power cut, too
  mv "$folder/incoming" "$folder/${wheel##*/}"
  rm -f "$folder/build.log"
)

end_build() {
  [ -n "$1" ] || return 0
  kill -- "-$1" 2>/dev/null || kill "$1" 2>/dev/null || return 0
  wait "$1" 2>/dev/null || true
}

prepare() {
  local venv=$1 extras=$2 constraints=${3:-} wheel
  make_venv "$venv"
  wheel=$(llama_wheel "$venv/bin/python")
  say "installing edgespec[$extras], which compiles its kernels (about a minute)"
  "$venv/bin/python" -m pip install -q ${constraints:+-c "$constraints"} "$wheel" -e "${root}[$extras]"
}

# make_venv VENV: an environment with pip, if there is none.
make_venv() {
  local venv=$1 python
  # Where ensurepip is missing, `python -m venv` fails and leaves an environment without pip.
  ! "$venv/bin/python" -m pip --version >/dev/null 2>&1 || return 0
  if [ -n "$(ls -A "$venv" 2>/dev/null)" ] && [ ! -f "$venv/pyvenv.cfg" ]; then
    fail "$venv is a folder with other things in it; set EDGESPEC_VENV to another one"
  fi
  python=$(find_python)
  say "making a virtual environment: $venv ($("$python" --version))"
  "$python" -m venv --clear "$venv" || fail "no virtual environment; on Debian: apt-get install python3-venv"
  "$venv/bin/python" -m pip install -q --upgrade pip
}
