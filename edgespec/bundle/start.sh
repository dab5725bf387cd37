#!/bin/sh
# Runs edgespec from this folder, without a network. The first time it is set up here, too: checksums are
# compared and the wheels installed into the folder venv.
set -eu

python_version='@PYTHON@'
system='@SYSTEM@'
processor='@PROCESSOR@'
requirement='@REQUIREMENT@'
pip='@PIP@'
model='@MODEL@'
draft='@DRAFT@'
backend='@BACKEND@'

usage() {
  cat <<'END'
  sh start                   a conversation
  sh start chat [OPTIONS]    the same
  sh start run PROMPT        one answer
  sh start serve [OPTIONS]   a server for this machine, with a page to chat
  sh start check             compare the files with their checksums

OPTIONS are those of edgespec chat, run and serve; add --help to see them. PYTHON names the Python to use.
END
}

say() { printf 'edgespec: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

sum() {
  if command -v sha256sum >/dev/null; then
    sha256sum "$@"
  elif command -v shasum >/dev/null; then
    shasum -a 256 "$@"
  else
    fail "neither sha256sum nor shasum is here to check the files; on Debian: coreutils"
  fi
}

check() {
  say "checking the files"
  said=$(cd "$here" && export LC_ALL=C && sum -c SHA256SUMS) || {
    printf '%s\n' "$said" | grep -v ': OK$' >&2 || true
    fail "files are not what they were when this bundle was made, see above; copy it anew"
  }
}

suits() {
  "$1" -c "import sys
sys.exit('%d.%d' % sys.version_info[:2] != '$python_version' or sys.maxsize < 2**32)" 2>/dev/null
}

find_python() {
  for candidate in ${PYTHON:+"$PYTHON"} "python$python_version" python3 python; do
    if suits "$candidate"; then
      echo "$candidate"
      return
    fi
    [ "$candidate" != "${PYTHON:-}" ] || fail "PYTHON is $PYTHON, which is not a 64-bit Python $python_version"
  done
  fail "this bundle is for Python $python_version (64 bits), which is not here; PYTHON can name one. For another" \
    "version make a bundle with --python"
}

install() {
  python=$(find_python)
  check
  say "setting up, once, in $here/venv"
  "$python" -m venv --without-pip --clear "$here/venv" ||
    fail "no virtual environment can be made in $here; copy the folder to a disk of this machine (not FAT)"
  PIP_CONFIG_FILE=/dev/null "$here/venv/bin/python" -I "$here/wheels/$pip/pip" --isolated install --quiet \
    --disable-pip-version-check --no-cache-dir --no-index --find-links "$here/wheels" "$requirement" ||
    fail "the wheels do not install, see above; this bundle is for Python $python_version, $system on $processor"
  sync # else a power cut could leave it complete, with files that are empty
  : >"$here/venv/complete"
}

# Of the environment nothing may bring in other packages.
unset PYTHONPATH PYTHONHOME
export EDGESPEC_OFFLINE=1 HF_HUB_OFFLINE=1

here=$(cd "$(dirname "$0")" && pwd -P)
command=chat
if [ $# -gt 0 ]; then
  command=$1
  shift
fi
case $command in
  chat | run | serve) ;;
  check) check; exit ;;
  -h | --help | help) usage; exit ;;
  *) usage >&2; fail "unknown command $command" ;;
esac

[ "$(uname -s) $(uname -m)" = "$system $processor" ] ||
  fail "this bundle is for $system on $processor, and this is $(uname -s) on $(uname -m); make one with --platform"
# One that was set up elsewhere, or before the system got another Python, does not run.
if [ ! -f "$here/venv/complete" ] || ! suits "$here/venv/bin/python"; then
  install
fi
export EDGESPEC_HOME="${EDGESPEC_HOME:-$here/home}"
case $draft in
  models/*) draft=$here/$draft ;;
esac
exec "$here/venv/bin/python" -I -m edgespec "$command" --backend "$backend" ${draft:+--draft "$draft"} \
  "$here/$model" "$@"
