#!/usr/bin/env bash
# Checks Python and the system packages that Lockgate needs. As root on Debian it installs what is missing, else it says how to.
# Usage: scripts/system.sh PYTHON [run|test]
set -euo pipefail
python=$1 purpose=${2:-}
missing=()

if ! "$python" -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then
    echo "${python:-python3} cannot be used: Lockgate needs Python 3.11, 3.12, 3.13 or 3.14 with venv" >&2
    echo "(on Debian and Ubuntu: apt-get install python3 python3-venv). PYTHON=python3.13 chooses another one." >&2
    exit 1
fi
[ -z "$purpose" ] || "$python" -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null || missing+=(libgomp1)
[ "$purpose" != test ] || command -v curl >/dev/null || missing+=(curl)
[ ${#missing[@]} -gt 0 ] || exit 0

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
