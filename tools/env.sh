# The one build environment, read by `make` and `.ci/run`; for plain cargo: `. tools/env.sh`.
# Changing a value here recompiles RocksDB (about 30 minutes of CPU time), unless ccache still has it.

# Where rustup puts cargo; a shell that is not a login shell may not know it.
if ! command -v cargo >/dev/null 2>&1 && [ -x "$HOME/.cargo/bin/cargo" ]; then
    export PATH="$HOME/.cargo/bin:$PATH"
fi

# Outlives the clone: a second clone, or a second run of CI on the same machine, compiles no C++.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/klad/target}"

# RocksDB's and jemalloc's C++ and C go through ccache, so that even a build script that runs again is quick.
if command -v ccache >/dev/null 2>&1; then
    export CC="${CC:-ccache cc}"
    export CXX="${CXX:-ccache c++}"
fi
export CCACHE_DIR="${CCACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/klad/ccache}"
# Objects do not hold the directory they were compiled in (no debug information), so it need not be part of the key.
export CCACHE_NOHASHDIR=1
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$CARGO_TARGET_DIR}"
