#!/usr/bin/env bash
# Builds the app with Debian 12's packages alone:
#
#   android_demo/app/build.sh [FILE]   (default: edgespec.apk)
#
# PORT is the server's (default: 8000). The app is signed with a debug key, made on the spot and then
# thrown away; to be able to update an installed app, name a keystore to make or use with KEYSTORE.
set -euo pipefail

programs=(smali aapt zipalign apksigner keytool)
app=$(cd "$(dirname "$0")" >/dev/null && pwd)
page=$app/../../edgespec/server/page
framework=/usr/share/android-framework-res/framework-res.apk
out=$(realpath -m "${1:-edgespec.apk}")
port=${PORT:-8000}

fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

for program in "${programs[@]}"; do
  command -v "$program" >/dev/null || missing=1
done
if [ -n "${missing:-}" ] || [ ! -f "$framework" ]; then
  fail "tools are missing; on Debian 12:
  apt-get install --no-install-recommends libsmali-java aapt zipalign apksigner android-framework-res default-jre-headless"
fi
if ! [[ $port =~ ^[1-9][0-9]{3,4}$ ]] || ((port < 1024 || port > 65535)); then
  fail "PORT is $port, not one of 1024 to 65535"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$app"/{smali,assets,res} "$work"
sed -i "s|@SERVER@|http://127.0.0.1:$port/|g" "$work"/{smali,assets}/*
mkdir "$work/res/drawable"
cp "$page/icon-192.png" "$work/res/drawable/icon.png"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$app/../../pyproject.toml")

smali assemble --api 24 -o "$work/classes.dex" "$work/smali"
aapt package -f -M "$app/AndroidManifest.xml" -A "$work/assets" -S "$work/res" -I "$framework" \
  --version-code 1 --version-name "$version" -F "$work/unaligned.apk"
(cd "$work" && aapt add unaligned.apk classes.dex >/dev/null)
zipalign -p 4 "$work/unaligned.apk" "$work/aligned.apk"

keystore=$(realpath -m "${KEYSTORE:-$work/debug.keystore}")
[ -f "$keystore" ] ||
  keytool -genkeypair -keystore "$keystore" -storepass android -alias debug -dname CN=debug \
    -keyalg RSA -keysize 2048 -validity 10000 >/dev/null 2>&1 || fail "keytool made no key in $keystore"
apksigner sign --ks "$keystore" --ks-pass pass:android --out "$work/signed.apk" "$work/aligned.apk"
mv "$work/signed.apk" "$out"
echo "$out"
