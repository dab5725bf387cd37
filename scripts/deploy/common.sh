# shellcheck shell=bash
# Sourced by pi.sh and jetson.sh: installs edgespec on a board, as a service of systemd.
#
# The script that sources it has, before it calls deploy "$@":
#   boards               the boards it knows, for people
#   board_of MODEL       the board, by the name that its firmware has in the device tree; nothing if unknown
#   llama_options BOARD  how llama.cpp is built for it: arguments for CMake
#   unit_of_board        what only this kind of board has in the unit, after edgespec.service
#   user_groups          groups that may use the board's devices
#   check_board          on the board: refuses it if it lacks something
#   check_build PYTHON   on the board: refuses a build that does not use what it was built for
#
# What is put where: code in /opt/edgespec (an environment for each release; `current` names the one in use),
# settings in /etc/edgespec, models in /var/lib/edgespec, wheels of llama.cpp in /var/cache/edgespec.
# edgespec.service knows these paths, too.

# shellcheck source=scripts/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"

code=/opt/edgespec
settings=/etc/edgespec/serve.env
state=/var/lib/edgespec
cache=/var/cache/edgespec # of setup.sh: wheels of llama.cpp
unit=/etc/systemd/system/edgespec.service
lock_file=/run/edgespec.lock

umask 022 # the service has another user than what it runs

dry=''
half_made='' # an environment that is not known to work
replaced=''  # the one that was in use before it

# Runs a command, or only shows it.
run() {
  if [ -n "$dry" ]; then
    printf '+%s\n' "$(printf ' %q' "$@")"
  else
    "$@"
  fi
}

# write MODE FILE: what comes on standard input.
write() {
  if [ -n "$dry" ]; then
    printf '+ write %s, mode %s:\n' "$2" "$1"
    sed 's/^/    /'
  else
    install -D -m "$1" /dev/stdin "$2"
  fi
}

as_user() { run runuser -u edgespec -- env EDGESPEC_HOME="$state" "$@"; }

unit_text() {
  cat "$root/scripts/deploy/edgespec.service"
  unit_of_board
}

settings_text() {
  cat <<SETTINGS
# Read by edgespec.service; after a change: systemctl restart edgespec
EDGESPEC_PAIR=$1
EDGESPEC_HOST=127.0.0.1
EDGESPEC_PORT=8000
# Other options of edgespec serve, such as: --ctx 2048 --idle-unload 600
EDGESPEC_OPTIONS=
# What clients must send; needed if EDGESPEC_HOST lets other machines in (0.0.0.0)
#EDGESPEC_API_KEY=
SETTINGS
}

# The value of a setting. The file has systemd's syntax, not the shell's.
setting() { sed -n "s/^$1=//p" "$settings" | tail -n 1 | tr -d "\"'"; }

# Refuses what would fail later, after a long build.
check_machine() {
  local system
  [ "$(id -u)" = 0 ] || fail "it changes the system: run it with sudo"
  system=$(dpkg --print-architecture) # a 32-bit system may have a 64-bit kernel, so uname does not tell
  [ "$system" = arm64 ] || fail "a 64-bit Arm system is needed; this one is $system"
  [ -d /run/systemd/system ] || fail "systemd does not run here, so there can be no service"
}

# Refuses a build that would fill the disk, and says what the unit cannot do here.
check_room() {
  local free
  free=$(df --output=avail -BM "$(dirname "$code")" | tail -n 1 | tr -dc 0-9)
  ((free >= 4000)) || fail "the build needs 4 GB of disk; there are $free MB in $(dirname "$code")"
  grep -qw memory /sys/fs/cgroup/cgroup.controllers 2>/dev/null ||
    say "the kernel limits no service's memory here; cgroup_enable=memory on its command line changes that"
}

# As many compilers at once as there are cores, and gigabytes of memory.
compilers() {
  local gigabytes cores
  gigabytes=$(awk '/^MemAvailable:/ { print int($2 / 1000000) }' /proc/meminfo)
  cores=$(nproc)
  echo $((gigabytes < 1 ? 1 : gigabytes < cores ? gigabytes : cores))
}

# Makes the environment RELEASE, with its unit. It is gone again if the script ends while it is half_made.
build() {
  local release=$1 board=$2 python wheel
  export CMAKE_ARGS CMAKE_BUILD_PARALLEL_LEVEL
  CMAKE_ARGS=$(llama_options "$board") CMAKE_BUILD_PARALLEL_LEVEL=$(compilers)
  export TMPDIR=$cache/tmp # /tmp may be in memory
  run install -d -m 1777 "$TMPDIR"
  run apt-get update -q
  run env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends python3-venv python3-dev build-essential
  if [ -n "$dry" ]; then
    run python3 -m venv "$release"
    wheel=$cache/wheels/llama_cpp_python-$llama_cpp_python-py3-none-linux_aarch64.whl
    run env CMAKE_ARGS="$CMAKE_ARGS" CMAKE_BUILD_PARALLEL_LEVEL="$CMAKE_BUILD_PARALLEL_LEVEL" \
      "$release/bin/python" -m pip wheel --no-deps --wheel-dir "$cache/wheels" \
      "llama-cpp-python==$llama_cpp_python"
  else
    half_made=$release
    trap cut_off EXIT
    python=$(find_python)
    "$python" -m venv "$release"
    "$release/bin/python" -m pip install -q --upgrade pip
    wheel=$(llama_wheel "$release/bin/python")
  fi
  run "$release/bin/python" -m pip install -q "$wheel" "${root}[llama,onnx,server,grammar]"
  unit_text | write 0644 "$release/edgespec.service"
}

# Lets the service be RELEASE from its next start on.
switch_to() {
  run install -m 0644 "$1/edgespec.service" "$unit"
  run sync # else a power cut could leave files in use that are empty
  run ln -sfn "$1" "$code/next"
  run mv -T "$code/next" "$code/current" # at once, so that there always is one
  run systemctl daemon-reload
}

# Without the environment that is not known to work, and with the one before it, if there was one.
undo() {
  [ -z "$replaced" ] || switch_to "$replaced"
  [ -z "$half_made" ] || rm -rf "$half_made"
  half_made=''
}

# When the script ends early: something failed, or Ctrl-C or a lost connection ended it.
cut_off() {
  [ -n "$half_made" ] || return 0
  trap '' INT TERM HUP
  undo
  [ -z "$replaced" ] || systemctl restart edgespec
}

# Until the script ends: another one would take what this one makes for leftovers.
one_at_a_time() {
  exec 9>"$lock_file"
  flock -n 9 || fail "another process installs, updates or removes edgespec here; wait for it"
}

# What a power cut left of attempts before: every environment but the one in use.
remove_leftovers() {
  local folder
  for folder in "$code"/*; do
    [ -L "$folder" ] || [ "$folder" -ef "$code/current" ] || rm -rf "$folder"
  done
  rm -rf "$cache/tmp"
}

# answers ENVIRONMENT PAIR [OPTIONS OF RUN]: whether the model answers. A build for another processor ends here.
answers() {
  local environment=$1
  shift
  check_build "$environment/bin/python" &&
    as_user "$environment/bin/edgespec" run "$@" --max-tokens 8 "Name a colour."
}

# Where the service tells that it is there.
health_address() {
  local host
  host=$(setting EDGESPEC_HOST)
  [[ $host != *:* ]] || host="[$host]" # of IPv6
  echo "http://$host:$(setting EDGESPEC_PORT)/health"
}

# Starts the service and waits until it takes requests: up to five minutes, as cards are slow.
starts() {
  run systemctl reset-failed edgespec || true # else a version that failed too often keeps the next from starting
  run systemctl restart edgespec
  if [ -n "$dry" ]; then
    echo "+ wait until the service answers /health"
    return
  fi
  local address until=$((SECONDS + 300))
  address=$(health_address)
  until "$code/current/bin/python" -c 'import sys, urllib.request as u
u.build_opener(u.ProxyHandler({})).open(sys.argv[1], timeout=5)' "$address" 2>/dev/null; do
    ((SECONDS < until)) && ! systemctl is-failed -q edgespec || return 1
    sleep 2
  done
}

install_edgespec() {
  local board=$1 pair=$2 source=$3 release
  [ -n "$dry" ] || [ ! -e "$code/current" ] ||
    fail "edgespec is installed here: use --update, or --uninstall first"
  [ -n "$dry" ] || ! (: <>/dev/tcp/127.0.0.1/8000) 2>/dev/null ||
    fail "another program listens on port 8000, where edgespec would"
  release=$code/$(date +%Y%m%d-%H%M%S)
  id edgespec >/dev/null 2>&1 ||
    run useradd --system --user-group --groups "$(user_groups)" --home-dir "$state" \
      --shell /usr/sbin/nologin edgespec
  run install -d -m 0750 -o edgespec -g edgespec "$state"
  build "$release" "$board"
  as_user "$release/bin/edgespec" pull "$pair" --source "$source"
  answers "$release" "$pair" ||
    fail "the model does not answer, see above; --uninstall --purge removes what was fetched"
  settings_text "$pair" | write 0600 "$settings"
  switch_to "$release"
  half_made='' # it stays, even if it does not start
  run systemctl enable edgespec
  starts || fail "the service does not start: journalctl -u edgespec"
  [ -n "$dry" ] ||
    say "edgespec serves $pair at http://127.0.0.1:8000; settings: $settings; log: journalctl -u edgespec"
}

update_edgespec() {
  local board=$1 release before pair=PAIR
  before=$code/BEFORE
  if [ -z "$dry" ]; then
    [ -e "$code/current" ] || fail "edgespec is not installed here: leave out --update"
    before=$(readlink -f "$code/current")
    pair=$(setting EDGESPEC_PAIR)
  fi
  release=$code/$(date +%Y%m%d-%H%M%S)
  build "$release" "$board"
  replaced=$before
  run systemctl stop edgespec # two models at once might not fit
  # Whether it fits into memory depends on the settings, with which the service starts; this is about the build.
  answers "$release" "$pair" --draft none --ctx 512 --no-memory-check ||
    give_up "does not answer, see above"
  switch_to "$release"
  starts || give_up "does not start: journalctl -u edgespec"
  half_made=''
  run rm -rf "$before"
  [ -n "$dry" ] || say "edgespec is up to date"
}

# give_up REASON: ends an update that does not work here.
give_up() {
  undo
  starts || fail "neither the new version nor the one before starts: journalctl -u edgespec"
  fail "the one before is back, as the new version $1"
}

uninstall_edgespec() {
  local purge=$1
  run systemctl disable --now edgespec || true # it may never have got so far
  run rm -rf "$unit" "$code" "$(dirname "$settings")" "$cache"
  run systemctl daemon-reload
  if [ -n "$purge" ]; then
    run rm -rf "$state"
    ! id edgespec >/dev/null 2>&1 || run userdel edgespec
  else # with their owner, as another user could be given its number
    say "the models in $state stay, and so does the user edgespec; --uninstall --purge deletes them, too"
  fi
}

# Copies what is needed of the checkout to HOST and runs the same script there, with the other ARGUMENTS.
over_ssh() {
  local host=$1 folder=/tmp/edgespec.XXXXXX script copy command
  local files=(LICENSE README.md pyproject.toml edgespec models scripts)
  script=scripts/deploy/$(basename "$0")
  shift
  copy="umask 077; folder=\$(mktemp -d $folder) && tar -xz -C \"\$folder\" && echo \"\$folder\""
  if [ -n "$dry" ]; then
    echo "+ tar -cz ${files[*]} | ssh $host '$copy'"
  else
    # shellcheck disable=SC2029 # expanded here
    folder=$(
      tar -C "$root" -cz --exclude="libedgespec_ort.*" --exclude=__pycache__ "${files[@]}" | ssh "$host" "$copy"
    )
    folder=${folder##*$'\n'} # below what the board greets with
    [[ $folder =~ ^/tmp/edgespec\.[A-Za-z0-9]+$ ]] || fail "$host did not say where the copy is, but: $folder"
  fi
  command="sudo bash $folder/$script$(printf ' %q' "$@"); status=\$?; rm -rf $folder; exit \$status"
  if [ -n "$dry" ]; then
    echo "+ ssh -t $host '$command'"
    say "to see what that does there: $script --dry-run --board NAME"
  else
    ssh -t "$host" "$command"
  fi
}

deploy() {
  local action=install pair=smollm2-135m source=hub board='' purge='' host='' model passed=()
  while [ $# -gt 0 ]; do
    case $1 in
      --update | --uninstall) action=${1#--} passed+=("$1") ;;
      --purge) purge=1 passed+=("$1") ;;
      --dry-run) dry=1 ;;
      --pair | --source | --board)
        [ -n "${2:-}" ] || fail "$1 needs a value"
        local "${1#--}=$2"
        passed+=("$1" "$2")
        shift
        ;;
      -h | --help) usage; exit ;;
      -*) fail "unknown option $1; see scripts/deploy/$(basename "$0") --help" ;;
      *)
        [ -z "$host" ] || fail "one board at a time: $host or $1"
        host=$1
        ;;
    esac
    shift
  done
  [[ $pair =~ ^[A-Za-z0-9._:/-]+$ ]] || fail "--pair needs a name as edgespec pull takes it, not $pair"
  [[ $source == hub || $source == packages ]] || fail "--source needs hub or packages"
  [ -z "$purge" ] || [ "$action" = uninstall ] || fail "--purge goes with --uninstall"
  [ -z "$board" ] || llama_options "$board" >/dev/null

  if [ -n "$host" ]; then
    over_ssh "$host" "${passed[@]}"
    return
  fi
  [ -n "$dry" ] || { check_machine; one_at_a_time; }
  if [ "$action" = uninstall ]; then
    uninstall_edgespec "$purge"
    return
  fi
  if [ -z "$board" ]; then
    model=$(tr -d '\0' 2>/dev/null </proc/device-tree/model) || model="a machine without a device tree"
    board=$(board_of "$model")
    # shellcheck disable=SC2154 # of the script that sources this
    [ -n "$board" ] || fail "this is $model, none of $boards; to build for one of them: --board NAME"
  fi
  [ -n "$dry" ] || { remove_leftovers; check_room; check_board; }
  case $action in
    install) install_edgespec "$board" "$pair" "$source" ;;
    update) update_edgespec "$board" ;;
  esac
}
