# shellcheck shell=bash
# What every job does first: the site's own set-up, then the course's Python.
# Sourced by slurm/jobs/*.sbatch, which slurm/submit starts with COURSE_ROOT and its like set. A job of your own
# may source it too: it names no site, so there is no set-up, and your shell keeps its options.

: "${COURSE_ROOT:=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}"
if [[ -n ${COURSE_SITE-} ]]; then
    site=$COURSE_ROOT/slurm/sites/$COURSE_SITE
    # shellcheck source=/dev/null
    personal() { if [[ -f $site.my.env ]]; then source "$site.my.env"; fi; }
    personal # twice: the site's defaults build on it, and it has the last word
    # shellcheck source=slurm/sites/local.env
    source "$site.env"
    personal
    if [[ -n ${SITE_SETUP-} ]]; then eval "$SITE_SETUP"; fi # module scripts break under `set -u`: that comes after
    set -u
fi

if [[ -n ${COURSE_VENV-} && -x $COURSE_VENV/bin/python ]]; then PATH=$COURSE_VENV/bin:$PATH; fi
PATH=$COURSE_ROOT/slurm/bin:$PATH
export PATH PYTHONPATH=$COURSE_ROOT${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
cpus=${SLURM_CPUS_PER_TASK:-1}
# Both: a library starts one thread per core in every worker, and srun counts one CPU per task in Slurm 22.05 and 23.02.
export OMP_NUM_THREADS=$cpus SRUN_CPUS_PER_TASK=$cpus

# A task of this job; repeated, since versions differ in which variables srun reads.
task() { srun --cpus-per-task="$cpus" "$@"; }

# Let `torchrun` in each task know the other nodes; it reads these variables.
one_torchrun() {
    local first
    ((${SLURM_NNODES:-1} > 1)) || return 0
    first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    export PET_NNODES=$SLURM_NNODES PET_RDZV_BACKEND=c10d PET_RDZV_ID=$SLURM_JOB_ID
    export PET_RDZV_ENDPOINT=${MASTER_ADDR:-$first}:$((20000 + SLURM_JOB_ID % 12000))
}

# One task on each node of the job, beside whatever runs there.
each_node() {
    local nodes=${SLURM_JOB_NUM_NODES:-1}
    srun --overlap --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 "$@"
}

# Before a large file is written on Lustre: several storage targets for new files of its folder, where it has one.
stripe() {
    local folder
    folder=$(dirname "$1")
    mkdir -p "$folder"
    if [[ $(lfs getstripe -c -d "$folder" 2>/dev/null) == 1 ]]; then lfs setstripe -c 4 "$folder"; fi
}

# The Python environment as one file, which slurm/env/build.sh made: use_environment env.sqfs
#
# Thousands of look-ups at each `import torch`, on every rank, become one read of one file per job: sbcast
# carries it to the memory of each node, where it is compared with its checksum and mounted, or unpacked
# where mounts are closed. It is removed at the end; a job with a trap of its own calls `unuse` there.
use_environment() {
    local file=$1 sum=- nodes=${SLURM_JOB_NUM_NODES:-1} ready
    environment=${SLURM_TMPDIR:-/dev/shm}/environment-${SLURM_JOB_ID:?use_environment works inside a job}
    if [[ -r $file.sha256 ]]; then read -r sum _ <"$file.sha256"; fi
    each_node mkdir -m 700 "$environment"
    trap unuse EXIT
    sbcast "$file" "$environment/env.sqfs" || echo "use_environment: sbcast failed, so each node copies $file itself" >&2
    # A mount ends with its job step, so this step lasts until `unuse`; each node says when it is ready.
    exec {ready}< <(each_node bash "$COURSE_ROOT/slurm/env/mount.sh" "$file" "$environment" "$sum")
    environment_step=$!
    while read -r -u "$ready" _; do
        nodes=$((nodes - 1))
        if ((nodes == 0)); then
            PATH=$environment/venv/bin:$PATH
            return
        fi
    done
    echo "use_environment: $file could not be used on every node; see above" >&2
    return 1
}

unuse() {
    # shellcheck disable=SC2016  # for the node's shell
    each_node bash -c '{ fusermount3 -uz "$0/venv" || fusermount -uz "$0/venv"; } 2>/dev/null
        rm -rf --one-file-system "$0"' "${environment:?}" || true
    if [[ -n ${environment_step-} ]]; then wait "$environment_step" || true; fi
}

printf '%s: job %s%s, %s, %s CPUs per task, %s\n' "${SLURM_JOB_NAME-}" "${SLURM_JOB_ID-}" \
    "${COURSE_SITE:+ of $COURSE_SITE}" "${SLURM_JOB_NODELIST-}" "$cpus" "$(date +%F\ %T)"
