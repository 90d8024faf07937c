#!/usr/bin/env bash
# Runs the README's two commands on fresh Debian systems that hold only what the README names. Needs root and Debian.
# Usage: tests/clean_machine.sh [SUITE...]     (default: Debian 13, and the testing suite for its newer Python)
#
# Each system is a folder made by debootstrap, new in every run, and removed at the end unless KEEP=1. Commands run in separate
# mount and process namespaces, so that no mount and no process is left when this script ends, however it ends.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=python3,python3-venv,make,git,ca-certificates
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/lockgate-clean.XXXXXX")
trap 'exit 143' INT TERM
trap '[ -n "${KEEP:-}" ] || rm -rf --one-file-system "$folder"' EXIT

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "make test-clean needs root and Debian" >&2
    exit 1
fi
if ! command -v debootstrap >/dev/null; then
    apt-get update -qq && apt-get install -qq -y --no-install-recommends debootstrap >/dev/null
fi
commit=$(git rev-parse HEAD)
[ -z "$(git status --porcelain)" ] || echo "Uncommitted changes are not tested: this runs $commit."

make_system() { # SUITE ROOT
    echo "Making a Debian system in $2"
    debootstrap --variant=minbase --include=$packages "$1" "$2" >"$2.log" 2>&1 ||
        { tail -5 "$2.log" >&2; return 1; }
    # A mirror may lag behind: its lists of packages then count as expired.
    echo 'Acquire::Check-Valid-Until "false";' >"$2/etc/apt/apt.conf.d/99-mirror"
    cp /etc/resolv.conf "$2/etc/resolv.conf"
    cp /etc/ssl/certs/ca-certificates.crt "$2/etc/ssl/certs/ca-certificates.crt"
}

inside() { # ROOT COMMAND: runs it in the system, with the settings for proxies and certificates of this machine
    local settings
    mapfile -t settings < <(env | grep -iE '^(https?_proxy|no_proxy|ssl_cert_file|ssl_cert_dir|pip_[a-z_]+|uv_[a-z_]+)=' || true)
    unshare --mount --pid --fork --kill-child --propagation private bash -ec '
        root=$1; shift
        for part in dev dev/pts dev/shm sys; do mount --bind "/$part" "$root/$part"; done
        mount -t proc proc "$root/proc"
        exec chroot "$root" "$@"' - "$1" \
        env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root CI="${CI:-}" "${settings[@]}" \
        bash -c "cd /lockgate || exit 1"$'\n'"$2"
}

# The demo runs while one of its sample questions is asked under two policies, each again until the server listens.
demo='make demo >/tmp/demo.log 2>&1 & server=$!
ask() { .venv/bin/lockgate ask --url http://127.0.0.1:8033 --policy "$1" "Are all late fees waived?"; }
for _ in $(seq 900); do
    kill -0 $server || { tail -20 /tmp/demo.log; exit 1; }
    grep -q 127.0.0.1:8033 /tmp/demo.log && ask open >/dev/null 2>&1 && break
    sleep 1
done
tail -5 /tmp/demo.log
ask open | grep -F "All late fees are waived" && ask library | grep -F "Late fees are never waived"'

[ $# -gt 0 ] || set -- trixie testing
for suite in "$@"; do
    root="$folder/$suite"
    make_system "$suite" "$root"
    git clone -q . "$root/lockgate"
    version=$(inside "$root" "python3 --version")
    for step in demo test; do
        command="make test"
        [ $step = demo ] && command=$demo
        began=$SECONDS
        echo "== make $step on Debian $suite, $version =="
        inside "$root" "$command"
        echo "== make $step on Debian $suite, $version: passed in $((SECONDS - began)) s =="
    done
done
