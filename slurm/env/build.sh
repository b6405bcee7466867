#!/usr/bin/env bash
# The Python environment as one file: slurm/env/build.sh [OUT.sqfs] [VENV]
#
# A virtual environment is tens of thousands of small files; each job step on each node opens a thousand of
# them at `import torch`. As one file they cost one open. Needs mksquashfs (apt-get install squashfs-tools).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=${1:-$root/venv.sqfs}
venv=${2:-$root/.venv}
part=$out.part

refuse() {
    printf 'slurm/env/build.sh: %s\n' "$*" >&2
    exit 1
}
command -v mksquashfs >/dev/null || refuse "mksquashfs is not installed. Run: apt-get install squashfs-tools, or ask your site"
[[ -x $venv/bin/python ]] || refuse "$venv is no virtual environment. Run: make setup"
[[ ! -e $out ]] || refuse "$out exists already; remove it, or name another file"

# Code compresses three times, and zstd unpacks faster than most disks read. -no-exports and fixed times: the
# same environment gives the same bytes. Without SOURCE_DATE_EPOCH, which must not be combined with -mkfs-time.
# Read its help completely: `grep -q` would close the pipe early, and then mksquashfs fails, some of the time.
level=()
if [[ $(mksquashfs -help 2>&1 || true) == *zstd* ]]; then level=(-comp zstd -Xcompression-level 3); fi
trap 'rm -f "$part"' EXIT
env -u SOURCE_DATE_EPOCH mksquashfs "$venv" "$part" -noappend -no-progress -quiet "${level[@]}" \
    -b 128K -no-xattrs -all-root -mkfs-time 0 -all-time 0 -no-exports
unsquashfs -s "$part" >/dev/null || refuse "the image cannot be read back"
sha256sum "$part" | cut -d ' ' -f 1 >"$out.sha256" # sbcast checks nothing: each node compares with this
mv "$part" "$out"
printf '%s: %s, made of %s files\n' "$out" "$(du -h "$out" | cut -f1)" "$(find "$venv" | wc -l)"
cat <<EOF
Use it in a job, on all of its nodes:
  source "$root/slurm/lib.sh"; use_environment "$out"
Or by hand:
  python3 -m pysquashfs mount "$out" FOLDER && FOLDER/bin/smallfiles …
  or: squashfuse_ll "$out" FOLDER        (unmount: fusermount -u FOLDER)
  or: apptainer exec -B "$out":$venv:image-src=/ IMAGE smallfiles …
EOF
