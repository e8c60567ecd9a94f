# The build environment, which `make` and `.ci/run` read. For plain cargo: `. tools/env.sh`.
# A changed value recompiles RocksDB (about 30 minutes of CPU time), unless ccache has the files.

# The directory in which rustup installs cargo. Shells other than login shells may lack it.
if ! command -v cargo >/dev/null 2>&1 && [ -x "$HOME/.cargo/bin/cargo" ]; then
    export PATH="$HOME/.cargo/bin:$PATH"
fi

# Outside the clone, so that another clone, or another run of CI on the same machine, compiles no C++.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/klad/target}"

# RocksDB and jemalloc are compiled with ccache, so that a repeated build script is quick.
if command -v ccache >/dev/null 2>&1; then
    export CC="${CC:-ccache cc}"
    export CXX="${CXX:-ccache c++}"
fi
export CCACHE_DIR="${CCACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/klad/ccache}"
# Object files do not contain the directory (no debug information), so it does not have to be part of ccache's key.
export CCACHE_NOHASHDIR=1
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$CARGO_TARGET_DIR}"
