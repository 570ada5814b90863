#!/bin/sh
# The whole check of this repository, in the order of the README: format, lints, tests, docs, and
# every file of conf/ loaded by the program itself.
set -eu
cd "$(dirname "$0")/.."

cargo fmt --all --check
cargo clippy --all-targets --locked -- -D warnings
cargo test --locked
RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --locked
for file in conf/*.yaml; do
    cargo run --quiet --locked --bin sgl-edge -- check -c "$file" >/dev/null
    echo "ok $file"
done
