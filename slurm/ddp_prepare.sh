#!/usr/bin/env bash
# ddp.sbatch sources this file, which cleans the environment of the job and keeps its stop signals.
# Its functions find the run directory and the interpreter, and end the job.
set -euo pipefail

# --- the inherited environment: jobs/base/environment.py has what srun does not get ---------------
unset SLURM_CLUSTERS SLURM_WORKING_CLUSTER "${!SCONTROL_@}" PYTHONINSPECT PYTHONSAFEPATH \
    CDPATH POSIXLY_CORRECT GREP_OPTIONS
mapfile -t builtins < <(compgen -b)
unset -f "${builtins[@]}" link readlink sed awk env find # functions that the user's shell exports
# Slurm sends SIGTERM or --signal=B:... to this process alone. It starts again with them blocked,
# and becomes Python (jobs/attempt/attempts.py), which reads them. Before coreutils 8.31 they end it.
stops=(TERM INT QUIT HUP USR1 USR2 ALRM) # jobs/base/stop_signals.py
block=(env "--block-signal=$(IFS=, && echo "${stops[*]}")")
blocks() { [[ $("$@" env --list-signal-handling true 2>&1) =~ TERM\ [^:]*:\ BLOCK ]]; }
blocks || ! blocks "${block[@]}" || exec "${block[@]}" bash "$0" "$@"
# After sbatch --export=NAME the shell has a PATH of its own, which no command would inherit. Where
# the kernel kills a rank for want of memory, Slurm must not kill the agents, too.
export PATH HOME=${HOME:-~} PYTHONUNBUFFERED=1 SLURM_OOM_KILL_STEP=0
# Slurm gives the job the soft limits of the shell that submitted it.
for limit in n u f v d t l; do ulimit -S "-$limit" hard 2>/dev/null || true; done
# A job that was submitted inside of an array's task has the task id of that one, too.
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    job=$(timeout -s KILL 20 scontrol show job "$SLURM_JOB_ID" 2>/dev/null) || job=ArrayTaskId=
    [[ $job == *ArrayTaskId=* ]] || unset "${!SLURM_ARRAY_@}"
fi

# --- the end of the job ---------------------------------------------------------------------------
# Slurm would start an expedited job that ends with an error again, or hold it in the queue.
end_for_good() {
    local task=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID:-}}
    [[ $1 -gt 128 ]] || # a command that the signal of a preemption has ended
        scontrol update "JobId=${task:-$SLURM_JOB_ID}" Requeue=0 2>/dev/null || true
    exit "$1"
}
fail() { printf '%(%F %T)T error: %s\n' -1 "${*//[^[:print:]]/?}" >&2 && end_for_good 1; }
cannot_run() { # PYTHON REASON HINT
    fail "$1 cannot be executed on $(uname -n) ($(uname -m)): ${2##*"$1: "}: $3"
}
# Replaces this shell. A stop signal that comes meanwhile is lost only where env cannot block it.
become() {
    blocks || trap '' "${stops[@]}"
    exec "$@" </dev/null
}

# --- the run directory ----------------------------------------------------------------------------
# Tests whether the last FILE exists. `link` makes this host's client of the file system ask the
# server, as jobs/base/files.py does: for a minute it may show an old link, or miss a name.
exists() {
    for file; do link /proc/version "$file" 2>/dev/null || true; done
    [[ -e $file ]]
}
# Sets run_dir: RUN_DIR, the point of SWEEP_DIR, or a new one of CONFIG, which is found again.
find_run_dir() { # CONFIG | RUN_DIR | SWEEP_DIR [KEY=VALUE ...]
    run_dir=$1
    if exists "$run_dir" "$run_dir/spec.json"; then
        [[ ! -L $(realpath -s -- "$run_dir") ]] || fail "$run_dir is a link," \
            "which may lead elsewhere at a requeue: sbatch ... $(realpath "$run_dir")"
    elif exists "$run_dir/points"; then
        run_dir=$run_dir/points/${SLURM_ARRAY_TASK_ID:?a sweep directory needs sbatch --array}
    elif ! exists "$run_dir/checkpoints"; then # no run that has lost files
        adopt "$@"
    fi
    run_dir=$(cd "$run_dir" && pwd -P) || fail "$run_dir is not a run directory"
    for name in spec.json setup.sh code kit kit/slurm_job_kit/jobs/contract/rundir.py; do
        exists "$run_dir/$name" || fail "$run_dir/$name is missing, perhaps deleted by a scratch" \
            "purge: make resume RUN=$run_dir (kit resume $run_dir)"
    done
}
adopt() { # CONFIG [KEY=VALUE ...]
    local code=0 config=$1 python=${KIT_PYTHON:-} repository
    repository=$(cd "${BASH_SOURCE[0]%/*}/.." && pwd)
    [[ -x $python ]] || python=$repository/.venv/bin/python
    [[ -x $python ]] || python=python3
    [[ ! -f $config ]] || config=$(realpath "$config")
    cd "$repository"
    run_dir=$(KIT_PYTHON=$python "$python" -m jobs adopt "$config" "${@:2}") || code=$?
    [[ $code -ne 126 ]] || cannot_run "$python" "Exec format error" "set KIT_PYTHON"
    [[ $code -eq 0 ]] || end_for_good "$code"
}
# Ends the job where others made or may change what it would run: jobs/runs/ownership.py.
check_owner() {
    exists "$(readlink -f "$1/code")" "$(readlink -f "$1/kit")" || true # find asks no server
    others=$(cd "$1" && find . code/ kit/ -maxdepth 0 \( ! -uid "$EUID" ! -uid 0 -o -perm /022 \) \
        -printf '%p is of user %u (mode %m)' -quit 2>&1) || fail "$1: $others"
    [[ -z $others ]] || fail "$1: $others, and only its owner continues a run: chmod go-w, or" \
        "begin one of your own: submit ... --from $1"
}
# Sets KIT_PYTHON by the first line of setup.sh. The others are the user's: agent.sh sources them.
find_python() {
    local words="no such file"
    eval "$(head -n 1 "$1/setup.sh")"
    { exists "$KIT_PYTHON" && words=$("$KIT_PYTHON" -ISc '' 2>&1 >/dev/null); } ||
        cannot_run "$KIT_PYTHON" "$words" \
            "restore it, or continue in a new run from such a host: submit ... --from $1"
}
