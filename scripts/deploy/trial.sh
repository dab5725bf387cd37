#!/usr/bin/env bash
# Tries pi.sh on a copy of this system that is gone afterwards: installs, updates, updates to a version that
# does not work, uninstalls. Needs root, the network for pip and apt, and port 8000.
#
#   scripts/deploy/trial.sh             with this checkout, two minutes at least
#   scripts/deploy/trial.sh --aarch64   on a copy of Debian for Arm, emulated: half an hour at least, and without
#                                       the update that does not work
#
# The copy is an overlay in a mount namespace, in which systemd does not run: a stand-in for systemctl starts
# the unit's command as its user, without the unit's restrictions. Another stand-in says that this machine is
# a 64-bit Arm one, where none is emulated. For llama.cpp the wheel that scripts/demo built is taken, if there is
# one, and for Arm the one that is compiled here for it. Emulated, edgespec's kernels are left out, which take an
# hour to compile so; scripts/test --aarch64 tests them.
set -euo pipefail
# shellcheck source=scripts/setup.sh
. "$(dirname "$0")/../setup.sh"
# shellcheck source=scripts/aarch64.sh
. "$root/scripts/aarch64.sh"

emulated=''
case ${1:-} in
  -h | --help) usage; exit ;;
  --aarch64) emulated=1 ;;
  '' | --inside) ;;
  *) fail "unknown option $1; see scripts/deploy/trial.sh --help" ;;
esac

if [ "${1:-}" != --inside ]; then
  [ "$(id -u)" = 0 ] || fail "it needs root"
  copy=$(mktemp -d) system=/ wheel=''
  trap 'stop_emulation || true; rmdir "$copy"' EXIT
  if [ -n "$emulated" ]; then
    aarch64_ready || fail "there is nothing to emulate with"
    make_venv "$(venv_path)"
    wheel=$(arm_llama_wheel "$(venv_path)/bin/python")
    make_boards
    start_emulation
    make_arm_system
    system=$arm/system
  else
    for file in "$cache"/wheels/llama-cpp-python-"$llama_cpp_python"-*/*_"$(uname -m)".whl; do
      [ -n "$wheel" ] || [ ! -f "$file" ] || wheel=$file
    done
  fi
  unshare --mount --propagation private --pid --fork --kill-child bash "$0" --inside "$copy" "$system" "$wheel"
  exit
fi

copy=$2 system=$3 wheel=$4 board=pi5
in_copy() {
  chroot "$copy/root" env -u PYTHON -u PYTHONPATH -u EDGESPEC_HOME \
    PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}
pi() { say "pi.sh $*"; in_copy /tmp/checkout/scripts/deploy/pi.sh --board "$board" "$@"; }
health() { in_copy python3 -c 'import urllib.request as u; u.urlopen("http://127.0.0.1:8000/health", timeout=60)'; }
gone() { [ ! -e "$copy/root$1" ] || fail "$1 is still there"; }

mount -t tmpfs tmpfs "$copy"
mkdir "$copy"/{changes,work,root}
mount -t overlay overlay -o "lowerdir=$system,upperdir=$copy/changes,workdir=$copy/work" "$copy/root"
mount -t proc proc "$copy/root/proc"
mount --rbind /dev "$copy/root/dev"
mount --rbind /sys "$copy/root/sys"
mkdir -p "$copy"/root/{run/systemd/system,etc/systemd/system,tmp/checkout,usr/local/bin}
cp -r "$root"/{LICENSE,README.md,pyproject.toml,edgespec,models,scripts} "$copy/root/tmp/checkout"
rm -f "$copy"/root/tmp/checkout/edgespec/kernels/libedgespec_ort.* # as over SSH: it is for this processor

if [ "$system" = / ]; then
  cat >"$copy/root/usr/local/bin/dpkg" <<'STAND_IN'
#!/bin/sh
[ "$1" = --print-architecture ] && echo arm64 || exec /usr/bin/dpkg "$@"
STAND_IN
  chmod +x "$copy/root/usr/local/bin/dpkg"
else
  export EDGESPEC_NATIVE=0 QEMU_CPU=cortex-a72
  board=pi4
  mount --bind "$arm/$QEMU_CPU/proc/cpuinfo" "$copy/root/proc/cpuinfo"
  for file in /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt; do # the network as from here
    [ ! -f "$file" ] || cp -L --parents "$file" "$copy/root"
  done
fi
cat >"$copy/root/usr/local/bin/systemctl" <<'STAND_IN'
#!/bin/bash
running() { [ -f /run/trial.pid ] && kill -0 "$(cat /run/trial.pid)" 2>/dev/null; }
stop() { ! running || { kill "$(cat /run/trial.pid)"; while running; do sleep 0.2; done; }; }
case $1 in
  stop | disable) stop ;;
  restart)
    stop
    set -a
    . /etc/edgespec/serve.env
    EDGESPEC_HOME=/var/lib/edgespec
    eval "exec setsid runuser -u edgespec -- $(sed -n 's/^ExecStart=//p' /etc/systemd/system/edgespec.service)" \
      >>/run/trial.log 2>&1 9>&- &
    echo $! >/run/trial.pid ;;
  is-failed) ! running ;;
esac
STAND_IN
chmod +x "$copy/root/usr/local/bin/systemctl"

# shellcheck disable=SC2016 # expanded inside
key='. <(grep -v "^deploy " "$0"); CMAKE_ARGS=$(llama_options "$1")
  echo "$cache/wheels/llama-cpp-python-$llama_cpp_python-$(wheel_key)"'
if [ -n "$wheel" ]; then
  folder=$(in_copy bash -c "$key" /tmp/checkout/scripts/deploy/pi.sh "$board")
  mkdir -p "$copy/root$folder"
  cp "$wheel" "$copy/root$folder"
fi

pi --source packages
health
first=$(readlink "$copy/root/opt/edgespec/current")
! pi --source packages || fail "it installed over an installation"
pi --update
health
second=$(readlink "$copy/root/opt/edgespec/current")
gone "$first"
if [ "$system" = / ]; then
  echo 'raise RuntimeError("this version does not serve")' >>"$copy/root/tmp/checkout/edgespec/server/serve.py"
  ! pi --update || fail "it took a version that does not work"
  health
  [ "$(readlink "$copy/root/opt/edgespec/current")" = "$second" ] || fail "it did not go back"
fi
pi --uninstall
for path in /opt/edgespec /etc/edgespec /var/cache/edgespec /etc/systemd/system/edgespec.service; do
  gone "$path"
done
! health 2>/dev/null || fail "something still answers"
pi --uninstall --purge
gone /var/lib/edgespec
! in_copy id edgespec 2>/dev/null || fail "the user is still there"
say "the trial went well"
