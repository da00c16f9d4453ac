#!/usr/bin/env bash
# Becomes the agent of one node. srun starts this file once on each node; a local run starts it, too:
#     agent.sh RUN_DIR ATTEMPT [COMMAND_PREFIX...] PYTHON
# The user's setup lines run in a child shell. The agent gets the environment with which that shell
# ends, and replaces this one, inside of the command prefix. If that is not possible, the reason goes
# to attempt-K/agent-NNNNN.error, which `attempt.close` reads.
#
# A stop signal during the setup lines ends this shell, whatever command they run: there is nothing to
# save yet, and srun's exit code shows the signal. All names begin with kit_: the setup lines see them.
set -euo pipefail
trap 'exit 131' QUIT # which bash ignores without a trap

kit_run_dir=$1 kit_attempt=$2 kit_prefix=("${@:3:$#-3}") kit_python=${*: -1}
kit_setup=$kit_run_dir/setup.sh
kit_node_rank=${KIT_NODE_RANK:-${SLURM_NODEID:?start this file by srun}}
unset KIT_NODE_RANK # of a local run; a job that a rank submits must not inherit it
# Slurm's name of the node, if there is one. HOSTNAME may be that of the host that submitted.
kit_host=${SLURMD_NODENAME:-$(uname -n)}
printf -v kit_node '%05d' "$kit_node_rank"
kit_log=$kit_run_dir/attempt-$kit_attempt/setup-$kit_node.log
kit_error=$kit_run_dir/attempt-$kit_attempt/agent-$kit_node.error
kit_code=$kit_run_dir/code:$kit_run_dir/kit
export KIT_RUN_DIR=$kit_run_dir KIT_RUN_ID=${kit_run_dir##*/} # for the setup lines, too

kit_fail() { # REASON HINT
    printf '%(%F %T)T error: %s: %s\n  hint: %s\n' -1 "$kit_host" "${1//[^[:print:]]/?}" "$2" >&2
    printf '%s: %s\n' "$kit_host" "$1" >"$kit_error" || true
    exit 1
}

kit_find_code() { # Python searches the frozen code before any other
    [[ ${PYTHONPATH-}: == "$kit_code":* ]] ||
        export PYTHONPATH=$kit_code${PYTHONPATH:+:$PYTHONPATH}
}

# --- the inherited environment ----------------------------------------------------------------------
# The first eight bind all ranks to one core, launch.threads_per_rank sets what the next six do, with
# PYTHON... Python waits at its end, does not find the frozen code, or orders its sets as on the host
# of this start; the last ones change bash.
unset \
    OMP_PROC_BIND OMP_PLACES GOMP_CPU_AFFINITY KMP_AFFINITY KMP_HW_SUBSET KMP_PLACE_THREADS \
    OMP_DYNAMIC OMP_THREAD_LIMIT OMP_NUM_THREADS MKL_NUM_THREADS MKL_DOMAIN_NUM_THREADS \
    OPENBLAS_NUM_THREADS GOTO_NUM_THREADS BLIS_NUM_THREADS PYTHONINSPECT PYTHONSAFEPATH \
    PYTHONHASHSEED CDPATH POSIXLY_CORRECT GREP_OPTIONS
mapfile -t kit_builtins < <(compgen -b)
unset -f "${kit_builtins[@]}" link readlink grep find # functions of the user's shell
# A resume may have replaced these: let the file system's client ask the server about them.
for kit_name in "$kit_run_dir"{,/spec.json,/setup.sh,/code,/kit}; do
    link /proc/version "$kit_name" 2>/dev/null || true
    link /proc/version "$(readlink -f "$kit_name")" 2>/dev/null || true
done
# As in ddp.sbatch: nothing runs that another user made or may change.
kit_others=$(cd "$kit_run_dir" && find . code/ kit/ spec.json setup.sh -maxdepth 0 \
    \( ! -uid "$EUID" ! -uid 0 -o -perm /022 \) -printf '%p is of user %u (mode %m)' -quit 2>&1) ||
    kit_fail "$kit_run_dir: $kit_others" "make resume, or kit resume, names what a purge has deleted"
[[ -z $kit_others ]] || kit_fail "$kit_run_dir: $kit_others, and only its owner continues a run" \
    "chmod go-w, or begin one of your own: submit ... --from $kit_run_dir"
mapfile -t kit_lines <"$kit_setup"
case ${kit_lines[0]} in
"export KIT_PYTHON=$kit_python" | "export KIT_PYTHON='$kit_python'") ;;
*) unset PYTHONHOME PYTHONPLATLIBDIR ;; # of the interpreter that submitted
esac
# Slurm gives the job the soft limits of the shell that submitted it.
for kit_name in n u f v d t l; do ulimit -S "-$kit_name" hard 2>/dev/null || true; done

# --- the setup lines: the first line of setup.sh is the kit's ---------------------------------------
[[ $((${#kit_lines[@]} + ${#kit_prefix[@]})) -gt 1 ]] || kit_log=/dev/null
kit_find_code
mapfile -d '' -t kit_environment < <(
    set +e # and its status is printed: `wait` of bash 5.2 returns -1 for one in 1,000 such shells
    exec 3>&1 >"$kit_log" 2>&1 </dev/null
    (
        # conda and environment modules fail under -u, and their functions under -e. So only the lines
        # of setup.sh itself have to exit with 0.
        set +uo pipefail
        trap 'kit_status=$?; [[ ${BASH_SOURCE[0]} != "$kit_setup" ]] || exit "$kit_status"' ERR
        # shellcheck source=/dev/null
        source "$kit_setup" 3>&- # a server that a line starts must not hold the pipe
        (exit $?) || exit # not 0: `return`, or a syntax error
        type -P "${kit_prefix[0]:-env}" >/dev/null ||
            { echo "launch.command_prefix: ${kit_prefix[0]} is not on PATH" && exit 127; }
        kit_find_code
        # Functions last: bash may not read one again.
        { export -p && export -pf && printf '\0end'; } >&3
    )
    printf '\0%s' "$?" >&3
)
cat "$kit_log"
if [[ ${kit_environment[1]-} != end ]]; then
    kit_status=${kit_environment[1]:-143} # none: a stop signal ended both shells
    case $kit_status in
    # Some sites send a stop signal to the whole process tree, so to the command of a line, too.
    129 | 130 | 131 | 138 | 140 | 142 | 143) exit "$kit_status" ;;
    esac
    kit_last=$(grep . "$kit_log" | tail -n 1) || true
    kit_fail "setup: exit code $kit_status${kit_last:+: $kit_last}" \
        "where a line may fail, add || true to it"
fi
# --- the agent ----------------------------------------------------------------------------------------
cd "$kit_run_dir/code" # `python -m` searches the working directory first
# This part runs inside of the command prefix, perhaps in an image without bash.
kit_inside=$(cat <<'END'
code=$1 error=$2 host=$3; shift 3
fail() {
    printf '%s error: %s: %s\n  hint: %s\n' "$(date '+%F %T')" "$host" "$1" "$2" |
        LC_ALL=C tr -c '\n -~' '?' >&2
    printf '%s: %s\n' "$host" "$1" >"$error"
    exit 1
}
cd "$code" ||
    fail "launch.command_prefix: $code is not visible inside" "mount runs_root there"
command -v "$1" >/dev/null ||
    fail "launch.python: no interpreter $1 here" "name one of this node, or of the image"
# Modules that are no part of the interpreter: with the PYTHONHOME of another one they are missing.
if ! words=$("$1" -Sc "import select, struct" 2>&1 >/dev/null); then
    errors=$(printf '%s\n' "$words" | grep '^[^ ].*rror' | tr '\n' ' ')
    variables=$(env | grep -E '^(PYTHON|LD_(LIBRARY_PATH|PRELOAD)=)' | tr '\n' ' ')
    why="($(uname -m))${PYTHONHOME+ with PYTHONHOME=$PYTHONHOME}: ${errors:-${words##*"$1: "}}"
    fail "launch.python: $1 cannot be executed $why" \
        "name one that is built for this node; set here, perhaps by setup: $variables"
fi
exec "$@"
END
)
set -- "${kit_prefix[@]}" sh -c "$kit_inside" sh "$PWD" "$kit_error" "$kit_host" "$kit_python" \
    -m slurm_job_kit.jobs.node "$kit_run_dir" "$kit_attempt" --node-rank="$kit_node_rank"
# Not by `env NAME=VALUE`: other users see the arguments of a command. What has a name that bash does
# not take stays as it was inherited, and so does an inherited function that a line has unset.
mapfile -t kit_names < <(compgen -e)
set +euo pipefail # a variable may be readonly, and SHELLOPTS exported
unset "${kit_names[@]}" 2>/dev/null
eval "${kit_environment[0]}" 2>/dev/null
shopt -s execfail
exec "$@" ||
    kit_fail "launch.command_prefix: $1 cannot be executed ($(uname -m)): Exec format error" \
        "name a program that is built for this node, and that you may execute"
