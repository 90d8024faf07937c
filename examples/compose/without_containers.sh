#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The same deployment as processes on this machine, on loopback only; Ctrl-C ends all of them. From the root:
#   WEB_KEY=choose-one sh examples/compose/without_containers.sh
set -eu
: "${WEB_KEY:?set the key that clients send}"
here=$(dirname "$0")
bin=${BIN:-.venv/bin}
model=${MODEL_PORT:-8000} detectors=${DETECTORS_PORT:-8080} chunkers=${CHUNKERS_PORT:-8085}
settings=$(mktemp -d)
sed -e 's/hostname: [a-z]*/hostname: 127.0.0.1/' \
    -e "s/port: 8000/port: $model/" -e "s/port: 8080/port: $detectors/" -e "s/port: 8085/port: $chunkers/" \
    "$here/gateway.yaml" > "$settings/gateway.yaml"

started=
stop() {
    trap - INT TERM
    kill $started 2> /dev/null || true
}
trap stop INT TERM
"$bin/python" "$here/../echo_model.py" "$model" &
started="$started $!"
"$bin/lockgate" parts serve --config-path "$here/parts.yaml" --detectors-port "$detectors" --chunkers-port "$chunkers" &
started="$started $!"
"$bin/lockgate" serve --config-path "$settings/gateway.yaml" --host 127.0.0.1 &
started="$started $!"
wait $! || true
stop
wait || true
rm -r "$settings"
