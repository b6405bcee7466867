#!/bin/sh
# Make the virtual environment and install the project into it, pinned. Called by `make setup`.
#
# Usage: tools/setup.sh EXTRAS          for example: tools/setup.sh course,dev,browser,site
#        tools/setup.sh EXTRAS FOLDER   install nothing, but put the wheels there, for a machine without network
#   PYTHON=…        the Python to use; otherwise the first suitable one on PATH
#   VENV=…          where the environment goes (.venv)
#   WHEELS=FOLDER   install from these wheels, without network
#   SYSTEM_SITE=1   build on the PyTorch that PYTHON already has, and download no other
#
# Needs no root, no compiler, no git. A second call with nothing changed returns at once.
set -eu
cd "$(dirname "$0")/.."

extras=$1
venv=${VENV:-.venv}
stamp="$venv/.setup-stamp"
system_site=${SYSTEM_SITE:-0}
if [ -z "${SYSTEM_SITE:-}" ] && grep -qs '^[a-z0-9,]* 1 ' "$stamp"; then
    system_site=1 # once set up it stays, so that `make demo` needs no SYSTEM_SITE=1 of its own
fi
export PIP_DISABLE_PIP_VERSION_CHECK=1 UV_PYTHON_DOWNLOADS=never

say() { printf 'setup: %s\n' "$*" >&2; }
refuse() { say "$*"; exit 1; }

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
can_make_venvs() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# Sets $python, or refuses in one sentence.
find_python() {
    if [ -n "${PYTHON:-}" ]; then
        version=$(version_of "$PYTHON") || refuse "PYTHON=$PYTHON cannot be run; give the path of a Python 3.11 or newer."
        is_new_enough "$PYTHON" || refuse "PYTHON=$PYTHON is Python $version, and 3.11 or newer is needed; name a newer one with PYTHON=."
        can_make_venvs "$PYTHON" || refuse "PYTHON=$PYTHON has no venv module; install it (Debian, Ubuntu: apt install python3-venv) or name another with PYTHON=."
        python=$PYTHON
        return
    fi
    old='' bare=''
    for python in python3 python3.14 python3.13 python3.12 python3.11; do
        version=$(version_of "$python") || continue
        if ! is_new_enough "$python"; then old=$version; continue; fi
        if ! can_make_venvs "$python"; then bare=$python; continue; fi
        return
    done
    [ -z "$bare" ] || refuse "$bare has no venv module; install it (Debian, Ubuntu: apt install python3-venv) or name another with PYTHON=."
    [ -z "$old" ] || refuse "only Python $old was found, and 3.11 or newer is needed; load a newer one (module avail Python) or name it with PYTHON=."
    refuse "no Python was found; load one (module avail Python) or name it with PYTHON=, 3.11 or newer."
}

# One line that changes when what would be installed changes; kept once a set of extras.
state_for() { printf '%s %s %s %s\n' "$1" "$system_site" "$(cat pyproject.toml contrib/smallfiles-lmdb/pyproject.toml requirements.lock | cksum)" "$PWD"; }
is_wanted_version() { [ -z "${PYTHON:-}" ] || [ "$(version_of "$venv/bin/python")" = "$(version_of "$PYTHON")" ]; }
is_done() { [ -x "$venv/bin/python" ] && is_wanted_version && grep -qsxF -- "$(state_for "$1")" "$stamp"; }

is_sound() {
    wanted=false
    [ "$system_site" != 1 ] || wanted=true
    grep -qsx "include-system-site-packages = $wanted" "$venv/pyvenv.cfg" &&
        "$venv/bin/python" -m pip --version >/dev/null 2>&1 && is_new_enough "$venv/bin/python" && is_wanted_version
}

make_venv() {
    if [ -e "$venv" ] && [ ! -f "$venv/pyvenv.cfg" ] && [ -n "$(find "$venv" ! -type d | head -n 1)" ]; then
        refuse "$venv exists and is no virtual environment; choose another folder with VENV=."
    fi
    if is_sound; then return; fi
    find_python
    say "making $venv with Python $(version_of "$python") ($python)"
    set -- --clear # also what is left of a set-up that was killed
    [ "$system_site" != 1 ] || set -- --clear --system-site-packages
    "$python" -m venv "$@" "$venv" >/dev/null || refuse "$python could not make $venv; is the folder writable, and the disk not full?"
}

# uv installs in a fifth of pip's time, but knows neither pip's settings nor a site's packages. It takes
# "no compiler" for the project itself too, so the dependencies come first and the project alone after.
# As pip does, it trusts the certificates of this system: behind a site's proxy its own are not enough. And as pip
# does, it compiles to bytecode: where the environment cannot be written (one for all), each process would compile
# PyTorch again, 4 CPU seconds in place of 2 and 9 with torchvision in place of 3.5.
install_with_uv() {
    run_pip -c requirements.lock uv || return 1
    extra_options=$(printf '%s' "$extras" | sed 's/^/--extra /; s/,/ --extra /g')
    # shellcheck disable=SC2086  # the options are several words
    run_uv --only-binary :all: -c requirements.lock -r pyproject.toml $extra_options &&
        run_uv --no-deps -e . -e ./contrib/smallfiles-lmdb
}

run_pip() {
    if [ -n "${WHEELS:-}" ]; then set -- --no-index --find-links "$WHEELS" "$@"; fi
    "$venv/bin/python" -m pip install --quiet --no-cache-dir "$@"
}

run_uv() {
    if [ -n "${WHEELS:-}" ]; then set -- --no-index --find-links "$WHEELS" "$@"; fi
    if [ ! -t 2 ]; then set -- --quiet "$@"; fi # a bar in a terminal, nothing in a log
    UV_CACHE_DIR=${UV_CACHE_DIR:-$venv/.uv-cache} UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-300} \
        UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1} UV_COMPILE_BYTECODE=${UV_COMPILE_BYTECODE:-1} \
        "$venv/bin/python" -m uv pip install --python "$venv/bin/python" "$@"
}

install_with_pip() {
    run_pip --only-binary :all: -c "$1" -e ".[$extras]" -e ./contrib/smallfiles-lmdb
}

install_beside_site() {
    "$venv/bin/python" tools/site_constraints.py requirements.lock >"$venv/site-constraints.txt" || exit 1
    install_with_pip "$venv/site-constraints.txt"
}

failed="the packages could not be installed (see above); is the network or a package mirror within reach, and space left?"

# Besides the packages: the project itself, what builds it from a clone (setuptools), and what installs fast (uv).
fill_wheelhouse() { # FOLDER
    find_python
    place=$(mktemp -d)
    trap 'rm -rf "$place"' EXIT
    say "collecting the wheels of $extras for Python $(version_of "$python") on $(uname -m)"
    "$python" -m venv "$place" >/dev/null || refuse "$python could not make a virtual environment in $place."
    cp -R contrib/smallfiles-lmdb "$place/lmdb" # its build folder stays there
    "$place/bin/python" -m pip wheel --quiet --no-cache-dir --only-binary :all: -c requirements.lock -w "$1" \
        ".[$extras]" "$place/lmdb" 'setuptools>=77' uv ||
        refuse "$failed"
    say "done: $1 has $(find "$1" -name '*.whl' | wc -l) wheels. Copy it to the site, and install there with:"
    case ",$extras," in *,course,*) printf '  make setup WHEELS="%s"   # in a clone, or\n' "$1" ;; esac
    printf '  python -m pip install --no-index --find-links "%s" "smallfiles[%s]"\n' "$1" "$extras"
}

install() {
    if [ "$system_site" = 1 ]; then
        say "installing what the site's packages lack"
        install_beside_site || refuse "$failed"
    else
        say "installing the pinned packages; the first time this takes some minutes and 6 GB"
        install_with_uv || { say "uv did not do it, trying pip (slower)"; install_with_pip requirements.lock; } || refuse "$failed"
    fi
    rm -rf "$venv/.uv-cache" # thousands of files that only a second environment would use
}

if [ $# = 2 ]; then
    fill_wheelhouse "$2"
    exit
fi
if is_done "$extras"; then exit 0; fi
if command -v flock >/dev/null; then # one at a time, should `make demo` and `make test` start together
    exec 9<tools/setup.sh
    flock 9 2>/dev/null || true # some parallel file systems have no locks
    if is_done "$extras"; then exit 0; fi
fi
make_venv
install
{
    state_for "$extras"
    [ "$extras" = "${extras#course,}" ] || state_for course # the larger set holds the smaller one
} >"$stamp"
say "done: $venv is ready"
