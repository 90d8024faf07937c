#!/usr/bin/env bash
# Installs what `make test-services` needs beside `make setup`: PgBouncer, and clients for Python and Node at fixed versions.
# Usage: tests/services/install.sh VENV      (the virtualenv of `make install`, whose Python and uv are used)
set -euo pipefail
trap 'exit 130' INT TERM
cd "$(dirname "$0")/../.."
bin=$PWD/$1/bin clients=tests/services/clients

fail() {
    echo "make test-services: $*" >&2
    exit 1
}

if ! command -v pgbouncer >/dev/null && [ ! -x /usr/sbin/pgbouncer ]; then
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null ||
        fail "PgBouncer is missing; install it (Debian, Ubuntu: sudo apt-get install pgbouncer) and run this again"
    echo "Installing the system package pgbouncer"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -qq -y --no-install-recommends pgbouncer >/dev/null ||
        fail "apt-get could not install pgbouncer"
fi

index=${PIP_INDEX_URL:-$("$bin/python" -m pip config get global.index-url 2>/dev/null || true)}
[ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index} # uv does not read pip's settings

for name in current previous; do
    venv=.venv-clients-$name lock=$clients/$name.lock
    cmp -s "$lock" "$venv/installed.lock" && continue
    echo "Setting up $venv"
    "$bin/uv" venv -q --clear --python "$bin/python" "$venv"
    "$bin/uv" pip install -q --python "$venv/bin/python" --require-hashes -r "$lock" ||
        fail "the packages of $lock could not be fetched; the first run needs the network"
    cp "$lock" "$venv/installed.lock"
done

if ! cmp -s "$clients/package-lock.json" "$clients/node_modules/installed.json"; then
    echo "Setting up $clients/node_modules"
    PATH=$PWD/.venv-clients-current/bin:$PATH npm ci --prefix "$clients" --ignore-scripts --no-audit --no-fund --silent ||
        fail "the packages of $clients/package-lock.json could not be fetched; the first run needs the network"
    cp "$clients/package-lock.json" "$clients/node_modules/installed.json"
fi
