# shellcheck shell=bash
# Sourced by scripts/test after setup.sh: the browser that the chat page is tested in.

# Whether Chromium and its driver are there. As root, Debian's packages of them are installed first.
browser_ready() {
  if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    return 0
  fi
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing Chromium"
    if apt-get update -qq &&
      apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null; then
      return 0
    fi
  fi
  echo "Debian's packages chromium and chromium-driver are not installed" >&2
  return 1
}
