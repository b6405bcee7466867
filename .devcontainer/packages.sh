#!/bin/sh
# The system packages of the course, on Debian or Ubuntu as root: for the devcontainer and the Apptainer image alike.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq -y --no-install-recommends \
    ca-certificates git make python3-venv \
    slurm-wlm munge hostname procps iproute2 \
    squashfs-tools squashfs-tools-ng libsquashfs1 squashfuse fuse3 hdf5-tools >/dev/null
rm -rf /var/lib/apt/lists/*
