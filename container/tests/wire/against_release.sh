#!/usr/bin/env bash
# Starts a built server on a free port, plays the whole corpus against it, and stops it by SIGTERM.
# Fails if a case fails, or if the server does not drain and exit with 0. The last line is the
# runner's: `N passed, N failed`.
#
#     container/tests/wire/against_release.sh [PROGRAM [OPTION OF run.py ...]]
set -euo pipefail
here=$(dirname "$0")
program=${1:-$here/../../../target/release/ringcat}
shift || true

scratch=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
    rm -rf "$scratch"
}
trap cleanup EXIT

"$program" --listen 127.0.0.1:0 --cores 2 --examples-at / --log error \
    >"$scratch/out" 2>"$scratch/log" &
server=$!

# The server prints where it listens once it does.
port=
for _ in $(seq 100); do
    port=$(sed -n 's|^ringcat listens on http://127\.0\.0\.1:\([0-9]*\).*|\1|p' "$scratch/out")
    [ -z "$port" ] || break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
done
if [ -z "$port" ]; then
    echo "the server does not listen:" >&2
    cat "$scratch/log" >&2
    exit 1
fi

verdict=0
python3 "$here/run.py" --port "$port" "$@" >"$scratch/result" || verdict=$?

kill -TERM "$server"
status=0
wait "$server" || status=$?
server=

head -n -1 "$scratch/result"
cat "$scratch/out"
if [ "$status" -ne 0 ]; then
    echo "the server ended with status $status after SIGTERM, 0 is wanted; its log ends:" >&2
    tail -n 20 "$scratch/log" >&2
    verdict=1
fi
tail -n 1 "$scratch/result"
exit "$verdict"
