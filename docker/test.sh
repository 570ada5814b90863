#!/bin/sh
# The whole check of this repository, in the order of the README: format, lints, tests, instruction
# counts where valgrind is installed, docs, and every file of conf/ loaded by the program itself.
set -eu
cd "$(dirname "$0")/.."

cargo fmt --all --check
# With engines from Kubernetes throughout, so that nothing is compiled twice; without them it has to
# compile as well.
features="--features kubernetes"
cargo clippy --all-targets --locked $features -- -D warnings
cargo clippy --locked -- -D warnings
# Tokenizers whose licences keep them out of the repository; without npm only the shipped one is tested.
if command -v npm >/dev/null 2>&1; then
    sh tests/fixtures/tokenizer/fetch.sh target/tokenizers || echo "not fetched: more tokenizers"
fi
cargo test --locked $features
FEATURES="$features" sh docker/instructions.sh
RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --locked $features
# The program that the tests have built: `cargo run` would build it again, with other features.
for file in conf/*.yaml docker/kubernetes/*/edge.yaml; do
    "${CARGO_TARGET_DIR:-target}/debug/sgl-edge" check -c "$file" >/dev/null
    echo "ok $file"
done
