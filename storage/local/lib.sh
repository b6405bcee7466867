# shellcheck shell=bash
# Where the local storage lives, and its programs; sourced by up, down, status, server and attach.

storage=${SMALLFILES_STORAGE:-/tmp/smallfiles-storage-$UID}
address=10.77.0.1
# shellcheck disable=SC2034  # up, down and attach use it
shared=$storage/shared # where each node of the local Slurm sees its own client
clients_file=$storage/clients
PATH=$PATH:/usr/sbin:/sbin

refuse() {
    printf 'storage/local/%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

is_up() { [[ -f $clients_file ]]; }

require_up() { is_up || refuse "the local storage is not up. Run: storage/local/up"; }

network() { cat "$storage/network"; }

# Run a program in the network of the storage. `ip netns exec` would hide the mounts from everyone else.
inside() { nsenter --net="/var/run/netns/$(network)" "$@"; }

# The process that serves from a folder (master, data1, data2), by its lock file.
server_process() { # NAME
    local pid
    pid=$(cat "$storage/$1"/.*.lock 2>/dev/null) || return 1
    # A process that ended but that nobody waited for has no program any more.
    [[ $pid =~ ^[0-9]+$ && $(readlink "/proc/$pid/exe") == */mfs* ]] && printf '%s\n' "$pid"
}

program_of() { # NAME
    if [[ $1 == master ]]; then echo mfsmaster; else echo mfschunkserver; fi
}

start_server() { # NAME
    local words=()
    [[ $1 != master ]] || words=(-a) # after a crash it repeats its journal first
    for _ in {1..20}; do
        inside "$(program_of "$1")" "${words[@]}" -c "$storage/$1.cfg" start >"$storage/$1.log" 2>&1 && return
        grep -q 'already locked' "$storage/$1.log" || break # one that was killed is not quite gone
        sleep 0.5
    done
    refuse "the server $1 did not start; see $storage/$1.log"
}

# The processes behind the mounts of all clients, or of one.
client_processes() { # NUMBER, or nothing
    local place point=" $storage/node${1:+$1)}" # it names itself: mfsmount (mounted on: FOLDER)
    for place in /proc/[0-9]*; do
        if [[ $(readlink "$place/exe") == */mfsmount && $(tr '\0' ' ' <"$place/cmdline") == *"$point"* ]]; then
            echo "${place#/proc/}"
        fi
    done
}

mount_client() { # NUMBER
    inside mfsmount "$storage/node$1" -H "$address" -P 19421 -o "$(cat "$storage/options")" \
        >"$storage/node$1.log" 2>&1 ||
        refuse "the client of node $1 could not be mounted; see $storage/node$1.log"
}

share() { mount --bind "$storage/node1" "$shared"; }

# How many data servers are connected to the metadata server.
data_servers() { inside mfscli -ns '|' -H "$address" -P 19421 -SCS 2>/dev/null | grep -c '^chunk servers:' || true; }

wait_for_data_servers() { # COUNT
    for _ in {1..60}; do
        [[ $(data_servers) == "$1" ]] && return 0
        sleep 1
    done
    refuse "the metadata server did not see $1 data servers within 60 s; see the *.log in $storage"
}

# The processes (slurmd) of the local Slurm that have mounts of their own, with the number of their node.
slurm_nodes() {
    local cluster=${SMALLFILES_CLUSTER:-/tmp/smallfiles-slurm-$UID} folder pid
    for folder in "$cluster"/n[0-9]*; do
        pid=$(cat "$folder/slurmd.pid" 2>/dev/null) || continue
        [[ $(readlink "/proc/$pid/ns/mnt") != "$(readlink /proc/self/ns/mnt)" ]] || continue
        printf '%s %s\n' "${folder##*/n}" "$pid"
    done
}
