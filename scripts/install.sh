#!/usr/bin/env bash
# Creates a virtualenv with exactly the packages of requirements.lock and Lockgate itself, editable.
# Usage: scripts/install.sh PYTHON VENV
set -euo pipefail
python=$1 venv=$2
lock=requirements.lock
pip=("$venv/bin/python" -m pip install --disable-pip-version-check)

echo "Setting up $venv with $("$python" --version): $(grep -c '^[a-z]' "$lock") packages, the first time about a minute."
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"

# uv installs several times as fast as pip. It comes from the same lock, checked by its hash.
fetch_uv() {
    awk '/^uv==/ { found = 1 } found { print; if (!/\\$/) exit }' "$lock" > "$venv/uv.lock"
    "${pip[@]}" -q --require-hashes -r "$venv/uv.lock" || return 1
    # uv does not read pip's settings. Where pip is set to another index, uv must look there too.
    index=$("$venv/bin/python" -m pip config get global.index-url 2>/dev/null) || return 0
    export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
}

install_locked() {
    "$venv/bin/uv" pip install --python "$venv/bin/python" --require-hashes -r "$lock"
}

with_uv() {
    echo "  uv"
    fetch_uv || return 1
    # On a terminal uv shows its progress. In a log it would list every package.
    if [ -t 2 ]; then install_locked || return 1; else install_locked 2>&1 | sed -u '/^ + \|^ Downloaded /d' || return 1; fi
    "$venv/bin/uv" pip install -q --python "$venv/bin/python" --no-deps --no-build-isolation -e .
}

with_pip() {
    "${pip[@]}" --require-hashes -r "$lock" |
        sed -un 's/^Collecting \([^ ]*\).*/  \1/p; s/^Installing collected packages.*/  unpacking; this takes half a minute/p'
    "${pip[@]}" -q --no-deps --no-build-isolation -e .
}

with_uv || { echo "uv could not install the packages; pip does it instead."; with_pip; }
"$venv/bin/python" -m pip check
