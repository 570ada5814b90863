#!/bin/sh
# Installs what the build needs and a bare Rust machine lacks: cmake (zlib-ng inside Pingora), a C
# and C++ compiler; and on the way valgrind, with which docker/instructions.sh counts and without
# which it does not. Does nothing where the first ones are there already. Debian and Ubuntu; elsewhere
# it says what is missing.
set -eu

missing=""
for tool in cmake cc c++ make; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
[ -z "$missing" ] && exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "please install:$missing" >&2
    exit 1
fi
as_root=""
[ "$(id -u)" = 0 ] || as_root="sudo"
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq
$as_root apt-get install -y -qq --no-install-recommends cmake gcc g++ make libc6-dev >/dev/null
$as_root apt-get install -y -qq --no-install-recommends valgrind >/dev/null ||
    echo "not installed: valgrind" >&2
