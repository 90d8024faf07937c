#!/usr/bin/env bash
# Runs the README's two commands on fresh Debian systems that hold only what the README names. Needs root and Debian.
# Usage: tests/clean_machine.sh [SUITE...]     (default: Debian 13, and the testing suite for its newer Python)
#
# Each system is a folder made by debootstrap. Everything runs in mount and process namespaces of its own, so that no mount
# and no process is left when this script ends, however it ends. The folders go too, unless KEEP=1.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=python3,python3-venv,make,git,ca-certificates
folder=${CLEAN_DIR:-/var/tmp/lockgate-clean}

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "make test-clean needs root and Debian" >&2
    exit 1
fi
if ! command -v debootstrap >/dev/null; then
    apt-get update -qq && apt-get install -qq -y --no-install-recommends debootstrap >/dev/null
fi
# Files of the last run of an editable install would hide a missing step: only what git has is copied.
commit=$(git rev-parse HEAD)
[ -z "$(git status --porcelain)" ] || echo "Uncommitted changes are not tested: this runs $commit."

make_system() { # SUITE ROOT
    [ -e "$2/etc/debian_version" ] && return
    echo "Making a Debian system in $2"
    mkdir -p "$folder/packages"
    debootstrap --variant=minbase --include=$packages --cache-dir="$folder/packages" "$1" "$2" >"$2.log" 2>&1 ||
        { tail -5 "$2.log" >&2; return 1; }
    # A mirror may lag behind: its lists of packages then count as expired.
    echo 'Acquire::Check-Valid-Until "false";' >"$2/etc/apt/apt.conf.d/99-mirror"
    cp /etc/resolv.conf "$2/etc/resolv.conf"
    cp /etc/ssl/certs/ca-certificates.crt "$2/etc/ssl/certs/ca-certificates.crt"
}

inside() { # ROOT COMMAND: runs it in the system, with the settings for proxies and certificates of this machine
    local settings
    mapfile -t settings < <(env | grep -iE '^(https?_proxy|no_proxy|ssl_cert_file|ssl_cert_dir|pip_[a-z_]+|uv_[a-z_]+)=' || true)
    unshare --mount --pid --fork --kill-child --propagation private bash -c '
        root=$1; shift
        for part in dev dev/pts dev/shm sys; do mount --bind "/$part" "$root/$part"; done
        mount -t proc proc "$root/proc"
        exec chroot "$root" "$@"' - "$1" \
        env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root CI="${CI:-}" "${settings[@]}" \
        bash -c "cd /lockgate && $2"
}

# The demo runs while two questions of the README are asked, each again until the server listens.
demo='make demo >/tmp/demo.log 2>&1 & server=$!
ask() { .venv/bin/lockgate ask --url http://127.0.0.1:8033 --policy "$1" "Are all late fees waived?"; }
for _ in $(seq 900); do
    kill -0 $server || { tail -20 /tmp/demo.log; exit 1; }
    grep -q 127.0.0.1:8033 /tmp/demo.log && ask open >/dev/null 2>&1 && break
    sleep 1
done
ask open | grep -F "All late fees are waived" && ask library | grep -F "Late fees are never waived"'

for suite in "${@:-trixie testing}"; do
    for name in $suite; do
        root="$folder/$name"
        mkdir -p "$folder"
        make_system "$name" "$root"
        rm -rf "$root/lockgate"
        git clone -q . "$root/lockgate"
        version=$(inside "$root" "python3 --version")
        for step in demo test; do
            command="make test"
            [ $step = demo ] && command=$demo
            began=$SECONDS
            echo "== make $step on Debian $name, $version =="
            inside "$root" "$command"
            echo "== make $step on Debian $name, $version: passed in $((SECONDS - began)) s =="
        done
        [ -n "${KEEP:-}" ] || rm -rf --one-file-system "$root" "$root.log"
    done
done
