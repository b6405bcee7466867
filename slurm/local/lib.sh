# shellcheck shell=bash
# Where the local cluster lives; sourced by up, down and status.

cluster=${SMALLFILES_CLUSTER:-/tmp/smallfiles-slurm-$UID}
conf=$cluster/slurm.conf
# shellcheck disable=SC2034  # up and down use it
mark="# smallfiles local cluster in $cluster #" # our line of /etc/hosts

refuse() {
    printf 'slurm/local/%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# The process of a pid file, if it is still the program that wrote it.
process_of() {
    local pid
    pid=$(cat "$2" 2>/dev/null) || return 1
    [[ -n $pid && $(cat "/proc/$pid/comm" 2>/dev/null) == "$1" ]] && printf '%s\n' "$pid"
}

stop() { # NAME PID_FILE
    local pid
    pid=$(process_of "$1" "$2") || return 0
    kill "$pid" 2>/dev/null || return 0
    for _ in {1..50}; do
        [[ -d /proc/$pid ]] || return 0
        sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null || true
}

nodes_of() { sed -n 's/^NodeName=\([^ ]*\).*/\1/p' "$conf"; }

# Processes of jobs of this cluster: each has its configuration and a job number in its environment.
of_jobs() {
    local place count
    for place in /proc/[0-9]*; do
        count=$( (tr '\0' '\n' <"$place/environ" | grep -cxE "SLURM_CONF=$conf|SLURM_JOB_ID=[0-9]+") 2>/dev/null)
        if [[ $count == 2 ]]; then printf '%s\n' "${place#/proc/}"; fi
    done
}

stop_all() {
    local node pid
    [[ -f $conf ]] || return 0
    for node in $(nodes_of); do stop slurmd "$cluster/$node/slurmd.pid"; done
    for pid in $(of_jobs); do kill -9 "$pid" 2>/dev/null || true; done
    stop slurmctld "$cluster/slurmctld.pid"
    stop munged "$cluster/munge/munged.pid"
}
