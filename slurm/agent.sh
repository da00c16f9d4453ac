#!/usr/bin/env bash
# Becomes the agent of one node. srun starts this file once on each node; a local run starts it, too:
#
#     agent.sh RUN_DIR ATTEMPT RDZV_ENDPOINT [COMMAND_PREFIX...] PYTHON
#
# It sources the user's setup lines, so the agent and the ranks get what the lines export. Then the
# agent replaces it, inside of the command prefix. If that is not possible, the reason goes to
# attempt-K/agent-NNNNN.error, which `attempt.close` reads.
#
# A stop signal during the setup lines ends this shell at once, whatever command they run: there is
# nothing to save yet, and srun's exit code shows the signal. A trap would wait for that command.
# Two signals have one all the same: bash ignores SIGQUIT, and SIGINT while a command runs.
#
# All names begin with kit_, because the setup lines run in this shell.
set -euo pipefail
trap 'builtin exit 130' INT
trap 'builtin exit 131' QUIT

kit_run_dir=$1 kit_attempt=$2 kit_endpoint=$3 kit_prefix=("${@:4:$#-4}") kit_python=${*: -1}
kit_folder=$kit_run_dir/attempt-$kit_attempt
kit_setup=$kit_run_dir/setup.sh
kit_node_rank=${KIT_NODE_RANK:-${SLURM_NODEID:?start this file by srun}}
# Slurm's name of the node, if there is one. HOSTNAME may be that of the host that submitted.
kit_host=${SLURMD_NODENAME:-$(uname -n)}
unset KIT_NODE_RANK # of a local run; a job that a rank submits must not inherit it
printf -v kit_node '%05d' "$kit_node_rank"
kit_log=$kit_folder/setup-$kit_node.log
kit_error=$kit_folder/agent-$kit_node.error
kit_code=$kit_run_dir/code # in a clone of the kit the kit is a part of it
# A resume may have replaced these links: let the file system's client ask the server about them.
for kit_link in "$kit_run_dir"/{code,kit}; do
    link /proc/version "$kit_link" 2>/dev/null || true
done
[[ $kit_run_dir/kit -ef $kit_code ]] || kit_code+=:$kit_run_dir/kit

# kit_fail REASON HINT
kit_fail() {
    printf '%(%F %T)T error: %s: %s\n  hint: %s\n' -1 "$kit_host" "$1" "$2" >&2
    printf '%s: %s\n' "$kit_host" "$1" >"$kit_error" || true
    exit 1
}

# Sets stdout and stderr back; then tee ends, unless a process of the setup lines still runs.
kit_end_log() {
    trap - ERR
    unset -f exit
    exec 1>&"$kit_stdout" 2>&"$kit_stderr" {kit_stdout}>&- {kit_stderr}>&-
}

# kit_setup_failed EXIT_CODE WHAT: ends this shell; the last line of the output is in the reason.
kit_setup_failed() {
    local last
    kit_end_log
    case $1 in
    # Some sites send a stop signal to the whole process tree, so to the command of a line, too.
    129 | 130 | 131 | 138 | 140 | 142 | 143) exit "$1" ;;
    esac
    for _ in {1..20}; do
        kill -0 "$kit_tee" 2>/dev/null || break
        sleep 0.05
    done
    last=$(grep . "$kit_log" | tail -n 1) || true
    kit_fail "setup: $2 exit code $1${last:+: $last}" "where a line may fail, add || true to it"
}

# kit_line_failed EXIT_CODE FILE LINE: a command of setup.sh, or of a file that it sources, failed.
kit_line_failed() {
    [[ $2 != "$kit_setup" ]] || kit_setup_failed "$1" "\`${kit_lines[$3 - 1]}\` failed with"
}

# kit_exit [EXIT_CODE]: stands for the builtin `exit` in the setup lines.
kit_exit() {
    local code=${1:-$?}
    [[ $BASHPID == "$$" ]] || builtin exit "$code" # of a subshell
    kit_setup_failed "$code" "the lines ended their shell with"
}

# Lets Python find the frozen code before any other.
kit_find_code() {
    [[ ${PYTHONPATH-}: == "$kit_code":* ]] ||
        export PYTHONPATH=$kit_code${PYTHONPATH:+:$PYTHONPATH}
}

# --- the inherited environment ----------------------------------------------------------------------
# The first eight bind all ranks to one core, launch.threads_per_rank sets what the next six do, with
# PYTHON... Python waits at its end or does not find the frozen code, the last ones change bash.
unset \
    OMP_PROC_BIND OMP_PLACES GOMP_CPU_AFFINITY KMP_AFFINITY KMP_HW_SUBSET KMP_PLACE_THREADS \
    OMP_DYNAMIC OMP_THREAD_LIMIT OMP_NUM_THREADS MKL_NUM_THREADS MKL_DOMAIN_NUM_THREADS \
    OPENBLAS_NUM_THREADS GOTO_NUM_THREADS BLIS_NUM_THREADS PYTHONINSPECT PYTHONSAFEPATH CDPATH \
    POSIXLY_CORRECT GREP_OPTIONS
mapfile -t kit_builtins < <(compgen -b)
unset -f "${kit_builtins[@]}" link grep # functions that the user's shell exports under these names
mapfile -t kit_lines <"$kit_setup"
case ${kit_lines[0]} in
"export KIT_PYTHON=$kit_python" | "export KIT_PYTHON='$kit_python'") ;;
*) unset PYTHONHOME PYTHONPLATLIBDIR ;; # of the interpreter that submitted
esac
# Slurm gives the job the soft limits of the shell that submitted it.
for kit_name in n u f v d t l; do
    ulimit -S "-$kit_name" hard 2>/dev/null || true
done

# --- the setup lines: the first line of setup.sh is the kit's ---------------------------------------
kit_find_code
if [[ ${#kit_lines[@]} -gt 1 ]]; then
    exec {kit_stdout}>&1 {kit_stderr}>&2 1> >(exec tee "$kit_log") 2>&1
    kit_tee=$!
    # conda and environment modules fail under -u, and their functions under -e. So only the lines of
    # setup.sh itself have to exit with 0.
    set +euo pipefail
    # Not a trap on EXIT: it runs at a signal, too, without a sign of it.
    eval 'exit() { kit_exit "$@"; }'
    trap 'kit_line_failed "$?" "${BASH_SOURCE[0]}" "$LINENO"' ERR
    # shellcheck source=/dev/null
    source "$kit_setup" </dev/null
    kit_status=$? # not 0: `return`, or a syntax error
    [[ $kit_status -eq 0 ]] || kit_setup_failed "$kit_status" "the lines ended with"
    kit_end_log
    set -euo pipefail
fi

# --- the agent ----------------------------------------------------------------------------------------
# `python -m` searches the working directory first, so it must be the frozen code. The setup lines
# may have left it, and may have set another PYTHONPATH.
cd "$kit_run_dir/code"
kit_find_code
[[ ${#kit_prefix[@]} -eq 0 ]] || command -v "${kit_prefix[0]}" >/dev/null ||
    kit_fail "launch.command_prefix: ${kit_prefix[0]} is not on PATH" "load it in setup"
# This part runs inside of the command prefix, perhaps in an image without bash.
kit_inside=$(
    cat <<'END'
code=$1 error=$2 host=$3
shift 3
fail() {
    printf '%s error: %s: %s\n  hint: %s\n' "$(date '+%F %T')" "$host" "$1" "$2" >&2
    printf '%s: %s\n' "$host" "$1" >"$error"
    exit 1
}
cd "$code" ||
    fail "launch.command_prefix: $code is not visible inside" "mount runs_root there"
command -v "$1" >/dev/null ||
    fail "launch.python: no interpreter $1 here" "name one of this node, or of the image"
exec "$@"
END
)
exec "${kit_prefix[@]}" sh -c "$kit_inside" sh "$PWD" "$kit_error" "$kit_host" "$kit_python" \
    -m slurm_job_kit.jobs.node "$kit_run_dir" "$kit_attempt" --rdzv-endpoint="$kit_endpoint" \
    --node-rank="$kit_node_rank"
