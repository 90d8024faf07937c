#!/usr/bin/env bash
# Creates a virtualenv with the packages of requirements.lock, and Lockgate itself, editable.
# Usage: scripts/install.sh PYTHON VENV
set -euo pipefail
trap 'exit 130' INT TERM # without this, Ctrl-C would end uv and begin the installation with pip
python=$1 venv=$2
lock=requirements.lock
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

echo "Setting up $venv with $("$python" --version); the first time this takes about a minute."
"${pip[@]}" --version >/dev/null 2>&1 || "$python" -m venv --clear "$venv"

# uv installs several times as fast as pip. It comes from the same lock, checked by its hash.
fetch_uv() {
    awk '/^uv==/ { found = 1 } found { print; if (!/\\$/) exit }' "$lock" > "$venv/uv.lock"
    "${pip[@]}" install -q --require-hashes -r "$venv/uv.lock" || return 1
    # uv does not read pip's settings. Where pip is set to another index, uv must look there too.
    local index
    index=${PIP_INDEX_URL:-$("${pip[@]}" config get global.index-url 2>/dev/null || true)}
    [ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
}

install_locked() {
    "$venv/bin/uv" pip install --python "$venv/bin/python" --require-hashes -r "$lock"
}

with_uv() {
    echo "  uv"
    fetch_uv || return 1
    # On a terminal uv shows its progress. In a log it would list every package.
    if [ -t 2 ]; then install_locked || return 1; else install_locked 2>&1 | sed -u '/^ [-+~] \|^ Downloaded \|^Uninstalled /d' || return 1; fi
    "$venv/bin/uv" pip install -q --python "$venv/bin/python" --no-deps --no-build-isolation -e .
}

with_pip() {
    "${pip[@]}" install --require-hashes -r "$lock" |
        sed -un 's/^Collecting \([^ ]*\).*/  \1/p; s/^Installing collected packages.*/  unpacking; this takes half a minute/p' ||
        return 1
    "${pip[@]}" install -q --no-deps --no-build-isolation -e .
}

with_uv || { echo "uv could not install the packages; pip does it instead."; with_pip; } || {
    echo "The packages could not be fetched. The first start needs the network, or an index named in pip's settings." >&2
    exit 1
}
"${pip[@]}" check
