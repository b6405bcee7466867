# shellcheck shell=bash
# What every job does first: the site's own set-up, then the course's Python.
# Sourced by slurm/jobs/*.sbatch, which slurm/submit starts with COURSE_ROOT and its like set.

site=$COURSE_ROOT/slurm/sites/${COURSE_SITE:?start me with slurm/submit}
# shellcheck source=/dev/null
personal() { if [[ -f $site.my.env ]]; then source "$site.my.env"; fi; }
personal # twice: the site's defaults build on it, and it has the last word
# shellcheck source=slurm/sites/local.env
source "$site.env"
personal
if [[ -n ${SITE_SETUP-} ]]; then eval "$SITE_SETUP"; fi # module scripts break under `set -u`: that comes after
set -u

if [[ -x ${COURSE_VENV-}/bin/python ]]; then PATH=$COURSE_VENV/bin:$PATH; fi
PATH=$COURSE_ROOT/slurm/bin:$PATH
export PATH PYTHONPATH=$COURSE_ROOT${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
cpus=${SLURM_CPUS_PER_TASK:-1}
# Both: a library starts one thread per core in every worker, and srun counts one CPU per task from 22.05 until 23.11.
export OMP_NUM_THREADS=$cpus SRUN_CPUS_PER_TASK=$cpus

# A task of this job; repeated, since versions differ in which variables srun reads.
task() { srun --cpus-per-task="$cpus" "$@"; }

printf '%s: job %s of %s, %s, %s CPUs per task, %s\n' "${SLURM_JOB_NAME-}" "${SLURM_JOB_ID-}" "$COURSE_SITE" \
    "${SLURM_JOB_NODELIST-}" "$cpus" "$(date +%F\ %T)"
