#!/bin/sh
# Builds the NEON kernels and their check with the cross compiler, statically and without any
# library, and runs them under qemu-user. Skips (77) when either is missing.
set -eu
cc=${AARCH64_CC:-aarch64-linux-gnu-gcc}
qemu=${QEMU_AARCH64:-qemu-aarch64}
root=$(cd "$(dirname "$0")/../.." && pwd)

for tool in "$cc" "$qemu"; do
    if ! command -v "$tool" >/dev/null; then
        echo "skipped: no $tool"
        exit 77
    fi
done

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$root"
"$cc" -static -O2 -std=gnu17 -D_GNU_SOURCE -I. -Wall -Wextra -Wno-unused-parameter -Wshadow -Werror \
    -ffp-contract=off -DTEST_NO_CRC -o "$dir/kernels" tests/kernels/check.c tests/kernels/check_batch.c \
    tests/kernels/data.c tests/kernels/bench.c \
    tests/kernels/bench_batch.c compute/batch.c compute/kernels.c compute/kernels_c.c compute/kernels_batch_c.c \
    compute/kernels_neon.c -lm
"$qemu" "$dir/kernels" --level neon "$@"
"$cc" -static -O2 -std=gnu17 -D_GNU_SOURCE -I. -Wall -Wextra -Wno-unused-parameter -Wshadow -Werror \
    -ffp-contract=off -o "$dir/search" tests/kernels/search.c fetcher/books.c fetcher/io.c options/exit.c fetcher/search.c \
    fetcher/search_c.c fetcher/search_neon.c compute/kernels.c compute/kernels_c.c compute/kernels_batch_c.c \
    compute/kernels_neon.c -lm
"$qemu" "$dir/search" neon
