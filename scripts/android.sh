# shellcheck shell=bash
# Sourced by .ci/run after setup.sh: what android_demo/app/build.sh builds with.

# Whether it is there. As root, Debian's packages of it are installed first.
android_ready() {
  local program missing=()
  for program in aapt zipalign apksigner; do
    command -v "$program" >/dev/null || missing+=("$program")
  done
  command -v smali >/dev/null || missing+=(libsmali-java)
  command -v keytool >/dev/null || missing+=(default-jre-headless)
  [ -f /usr/share/android-framework-res/framework-res.apk ] || missing+=(android-framework-res)
  [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
}
