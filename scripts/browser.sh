# shellcheck shell=bash
# Sourced by scripts/test after setup.sh: the browser that the chat page is tested in.

# Whether Chromium and its driver are there. As root, Debian's packages of them are installed first.
browser_ready() {
  if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    return 0
  fi
  install_packages chromium chromium-driver fonts-dejavu-core
}
