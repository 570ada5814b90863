#!/bin/sh
# Counts the instructions of the hot parts (benches/instructions.rs) under callgrind and compares
# them with benches/instructions.txt: a guard against work that has crept in, on machines whose clock
# says nothing. Fails when a part needs over a tenth more than it did.
#
#   sh docker/instructions.sh            compares
#   sh docker/instructions.sh --update   writes the file
#
# It counts the build that the tests use, which is not optimised: nothing is compiled for it but one
# more program, and another pass over a body, a copy or a loop over all engines shows there as well.
# What it cannot see is what the optimiser does or fails to do. Another compiler counts otherwise (its
# standard library is part of the count), so the file names its own and others are allowed 30 %; other
# machines than the file's are not compared.
set -eu
cd "$(dirname "$0")/.."
baseline=benches/instructions.txt

if ! command -v valgrind >/dev/null 2>&1; then
    echo "not counted: instructions (valgrind is not installed)"
    exit 0
fi
# FEATURES: those of the build that is there already, as `--features …`.
program=$(cargo build --locked ${FEATURES:-} --bench instructions --message-format=json-render-diagnostics |
    sed -n 's/.*"executable":"\([^"]*\/instructions-[^"]*\)".*/\1/p')
[ -x "$program" ] || { echo "the bench \`instructions\` could not be built" >&2; exit 1; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# One process for all parts, since starting takes longest. Nothing outside the first function is counted,
# and the count is written and begun anew when the second is entered, after each part.
status=0
valgrind --tool=callgrind --callgrind-out-file="$scratch/count" \
    --toggle-collect='*counted_part*' --dump-before='*part_finished*' \
    "$program" all >"$scratch/parts" 2>"$scratch/log" || status=$?
if [ "$status" != 0 ]; then
    tail -n 30 "$scratch/log" "$scratch/parts" >&2
    # A part that panicked is our fault; a valgrind that cannot run on this processor is nobody's.
    [ "$status" != 101 ] || exit 1
    echo "not counted: instructions (valgrind ended with $status)"
    exit 0
fi
number=0
while read -r part times; do
    number=$((number + 1))
    total=$(sed -n 's/^totals: //p' "$scratch/count.$number")
    [ "${total:-0}" -gt 0 ] || { echo "$part was not counted" >&2; exit 1; }
    echo "$part $((total / times))"
done <"$scratch/parts" >"$scratch/counted"

compiler=$(rustc --version)
host=$(rustc -vV | sed -n 's/^host: //p')
# Libraries choose other code where the processor has no AVX2.
if grep -qw avx2 /proc/cpuinfo 2>/dev/null; then host="$host avx2"; fi
if [ "${1:-}" = --update ]; then
    {
        echo "# Instructions per call of each part; written by docker/instructions.sh --update."
        echo "# $compiler"
        echo "# $host"
        cat "$scratch/counted"
    } >"$baseline"
    cat "$baseline"
    exit 0
fi
if ! grep -qxF "# $host" "$baseline"; then
    cat "$scratch/counted"
    echo "not compared: $baseline is of another machine than $host"
    exit 0
fi
percent=10
if ! grep -qxF "# $compiler" "$baseline"; then
    percent=30
    echo "note: $baseline is of another compiler than $compiler; 30 % are allowed"
fi
awk -v percent="$percent" '
    NR == FNR { if ($1 != "#") before[$1] = $2; next }
    { seen[$1] = 1 }
    !($1 in before) { print $1, $2, "is not in the file: run with --update"; bad = 1; next }
    {
        change = 100 * ($2 - before[$1]) / before[$1]
        verdict = "ok"
        if (change > percent) { verdict = "TOO MUCH"; bad = 1 }
        else if (change < -percent) verdict = "better: run with --update to keep it"
        printf "%-26s %10d, was %10d, %+6.1f %%  %s\n", $1, $2, before[$1], change, verdict
    }
    END {
        for (part in before) if (!(part in seen)) { print part, "is gone: run with --update"; bad = 1 }
        exit bad
    }
' "$baseline" "$scratch/counted"
