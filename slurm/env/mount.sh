#!/usr/bin/env bash
# One node's part of use_environment (slurm/lib.sh): mount.sh FILE FOLDER SHA256
#
# FOLDER/env.sqfs is what sbcast wrote. It is compared with SHA256 ("-" if that is not known), copied from
# FILE if it is not the same, and mounted at FOLDER/venv until it is unmounted. It says "ready" then.
set -euo pipefail
file=$1 folder=$2 sum=$3 here=$2/env.sqfs

intact() { [[ -s $here ]] && { [[ $sum == - ]] || sha256sum --check --status <<<"$sum  $here"; }; }
refuse() {
    printf 'use_environment: %s: %s\n' "${SLURMD_NODENAME-}" "$*" >&2
    exit 1
}

if ! intact; then
    printf 'use_environment: %s copies %s itself\n' "${SLURMD_NODENAME-}" "$file" >&2
    rm -f "$here" # the daemon may still write to the old one
    cp "$file" "$here"
    intact || refuse "$file is not what slurm/env/build.sh made; build it again"
fi
mkdir -m 700 "$folder/venv"
mounter=$(command -v squashfuse_ll || command -v squashfuse || true)
if [[ -n $mounter && -w /dev/fuse ]]; then
    "$mounter" -f "$here" "$folder/venv" >&2 &
    server=$!
    while kill -0 "$server" 2>/dev/null && ! mountpoint -q "$folder/venv"; do sleep 0.1; done
    mountpoint -q "$folder/venv" || refuse "$mounter could not mount $here"
    echo ready
    wait "$server"
else
    command -v unsquashfs >/dev/null || refuse "neither squashfuse nor unsquashfs can be used here"
    unsquashfs -quiet -no-progress -force -dest "$folder/venv" "$here" >/dev/null
    rm "$here"
    echo ready
fi
