#!/bin/sh
# Builds sgl-edge guided by a profile of its own work: target/pgo/release/sgl-edge.
#
#   sh docker/pgo.sh
#
# Builds once with counters, serves a few seconds of each kind of load from mock engines on loopback
# (short, 8 KiB and 64 KiB bodies, streams, prompts that are tokenized), and builds again with what was
# counted. Takes two release builds. Needs wrk, python3 and the compiler's profile tool:
#   rustup component add llvm-tools
set -eu
cd "$(dirname "$0")/.."
out=$PWD/target/pgo
port=${PGO_PORT:-18480}
seconds=${PGO_SECONDS:-4}

tool=$(find "$(rustc --print sysroot)" -name llvm-profdata -type f | head -n 1)
[ -n "$tool" ] || { echo "please: rustup component add llvm-tools" >&2; exit 1; }
for need in wrk python3; do
    command -v "$need" >/dev/null || { echo "please install $need" >&2; exit 1; }
done
mkdir -p "$out/profile"
rm -f "$out"/profile/*.profraw

export CARGO_TARGET_DIR="$out"
RUSTFLAGS="-Cprofile-generate=$out/profile" cargo build --release --locked --bin sgl-edge --bin mock-engine

profile=$out/profile
engine=$((port + 10))
# Not the counted program: only sgl-edge's own work is to be in the profile.
LLVM_PROFILE_FILE=/dev/null "$out/release/mock-engine" --instant --no-record --count 4 \
    --listen "127.0.0.1:$engine" >/dev/null 2>&1 &
engines=$!
edge=
trap 'kill $engines $edge 2>/dev/null || true' EXIT

python3 - "$profile" <<'PY'
import json, random, sys
words = open("README.md").read().split()
random.seed(1)
def body(size, stream):
    text = ""
    while len(text) < size:
        text += random.choice(words) + " "
    text = "########" + text[8:]  # the number of the request
    chat = {"model": "demo", "stream": stream, "max_tokens": 32,
            "messages": [{"role": "user", "content": text[:size]}]}
    return json.dumps(chat)
for name, size, stream in [("short", 150, False), ("8k", 8000, False), ("64k", 65000, False), ("sse", 150, True)]:
    with open(f"{sys.argv[1]}/{name}.jsonl", "w") as file:
        file.writelines(body(size, stream) + "\n" for _ in range(64))
PY

serve() { # policy
    cat >"$profile/edge.yaml" <<YAML
listen: ["127.0.0.1:$port"]
admin: {listen: "127.0.0.1:$((port + 1))"}
threads: 1
log: {level: warn}
models:
  - id: demo
    tokenizer: conf/tokenizers/demo
    engines:
      static:
        - {id: E1, url: "http://127.0.0.1:$engine", role: plain}
        - {id: E2, url: "http://127.0.0.1:$((engine + 1))", role: plain}
        - {id: E3, url: "http://127.0.0.1:$((engine + 2))", role: plain}
        - {id: E4, url: "http://127.0.0.1:$((engine + 3))", role: plain}
    buckets:
      - {id: all, groups: {plain: {policy: {type: $1, admission: {max_inflight_requests: 512}}}}}
YAML
    LLVM_PROFILE_FILE="$profile/%p.profraw" "$out/release/sgl-edge" run -c "$profile/edge.yaml" &
    edge=$!
    for _ in $(seq 100); do
        curl -fs -o /dev/null "http://127.0.0.1:$port/readyz" && break
        sleep 0.2
    done
    shift
    for load in "$@"; do
        wrk -t1 -c64 -d"${seconds}s" -s benches/load/wrk.lua "http://127.0.0.1:$port" -- "$profile/$load.jsonl" |
            grep RESULT
    done
    kill -INT $edge
    wait $edge || true
    edge=
}
serve power_of_two short 8k 64k sse
serve cache_aware 8k sse

"$tool" merge -o "$profile/merged.profdata" "$profile"/*.profraw
RUSTFLAGS="-Cprofile-use=$profile/merged.profdata" cargo build --release --locked --bin sgl-edge
echo "$out/release/sgl-edge"
