#!/usr/bin/env bash
# Checks for the system packages that Lockgate needs. As root on Debian it installs what is missing, else it says how to.
# Usage: scripts/system.sh PYTHON [test]
set -euo pipefail
python=$1 purpose=${2:-}
missing=()

"$python" -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null || missing+=(libgomp1)
if [ "$purpose" = test ]; then
    command -v curl >/dev/null || missing+=(curl)
fi
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "Installing system packages: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
    exit 0
fi
cat >&2 <<END
This machine lacks: ${missing[*]} (libgomp1 is GCC's OpenMP library, which the local model needs; curl is used by tests).
Install it, then run this command again:
  Debian, Ubuntu:  sudo apt-get install ${missing[*]}
  Fedora:          sudo dnf install ${missing[*]/libgomp1/libgomp}
END
exit 1
