# Sourced by scripts/demo and scripts/test: makes a virtual environment with edgespec in it.
#
# prepare VENV EXTRAS [CONSTRAINTS]: safe to run again; what is there is reused.
# llama.cpp is built from source once for this processor and compiler, and its wheel kept in the
# user's cache folder.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
llama_cpp_python=0.3.36
cache=${XDG_CACHE_HOME:-$HOME/.cache}/edgespec

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Python 3.10, which pyenv may hide behind a shim that refuses.
oldest_python() {
  if python3.10 -c '' 2>/dev/null; then
    echo python3.10
  elif command -v pyenv >/dev/null; then
    local version
    version=$(pyenv versions --bare 2>/dev/null | grep -m1 '^3\.10\.') && echo "$(pyenv root)/versions/$version/bin/python"
  fi
}

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.10; do
    [ -n "$candidate" ] && command -v "$candidate" >/dev/null || continue
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && { echo "$candidate"; return; }
  done
  fail "Python 3.10 or newer is needed; install python3 and python3-venv"
}

# GCC before 13 drops stores that set up AMX tiles (its _tile_loadconfig declares 8 of 64 bytes as
# read), and llama.cpp then crashes on processors with AMX: build without AMX there.
cmake_args() {
  local major
  major=$("${CXX:-c++}" -dumpversion | cut -d. -f1)
  if "${CXX:-c++}" --version | grep -q 'Free Software' && [ "$major" -lt 13 ] &&
    grep -qw amx_tile /proc/cpuinfo 2>/dev/null; then
    local flags='-mno-amx-tile -mno-amx-int8 -mno-amx-bf16'
    echo "-DCMAKE_C_FLAGS='$flags' -DCMAKE_CXX_FLAGS='$flags'"
  fi
}

# Prints the wheel of llama-cpp-python for this machine, building it if there is none.
llama_wheel() {
  local python=$1 key folder pid start
  command -v "${CXX:-c++}" >/dev/null || fail "a C++ compiler is needed; on Debian: apt-get install build-essential"
  key=$( { "${CXX:-c++}" --version; grep -m1 -E '^(flags|Features)' /proc/cpuinfo || uname -mp; cmake_args; } | sha256sum | cut -c1-12)
  folder=$cache/wheels/llama-cpp-python-$llama_cpp_python-$key
  if ! ls "$folder"/*.whl >/dev/null 2>&1; then
    say "building llama.cpp from source, once (about 4 minutes on 2 cores)"
    mkdir -p "$folder.partial"
    start=$SECONDS
    CMAKE_ARGS="${CMAKE_ARGS:-} $(cmake_args)" CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)} \
      "$python" -m pip wheel -q --no-cache-dir --no-deps --wheel-dir "$folder.partial" \
      "llama-cpp-python==$llama_cpp_python" >"$folder.partial/log" 2>&1 &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
      sleep 5
      (( (SECONDS - start) % 30 < 5 )) && echo "    ... $((SECONDS - start)) s" >&2
    done
    wait $pid || { tail -n 30 "$folder.partial/log" >&2; fail "llama.cpp did not build; the whole log: $folder.partial/log"; }
    mkdir -p "$folder"
    mv "$folder.partial"/*.whl "$folder"/
    rm -r "$folder.partial"
  fi
  echo "$folder"/*.whl
}

prepare() {
  local venv=$1 extras=$2 constraints=${3:-} python
  if [ ! -x "$venv/bin/python" ]; then
    python=$(find_python)
    say "making a virtual environment: $venv ($("$python" --version))"
    "$python" -m venv "$venv" || fail "no virtual environment; on Debian: apt-get install python3-venv"
    "$venv/bin/python" -m pip install -q --upgrade pip
  fi
  say "installing edgespec[$extras]"
  local wheel
  wheel=$(llama_wheel "$venv/bin/python")
  "$venv/bin/python" -m pip install -q ${constraints:+-c "$constraints"} "$wheel" -e "$root[$extras]"
}
