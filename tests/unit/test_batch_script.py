"""The batch script: no shellcheck findings, and the same defaults as the spec."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_job_kit.jobs.node.stop_signals import STOP_SIGNALS
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.slurm import sbatch
from slurm_job_kit.jobs.slurm.duration import parse_or_zero
from slurm_job_kit.jobs.spec import Spec
from tests.unit.two_hosts import look

SCRIPT = Path(__file__).resolve().parents[2] / sbatch.SCRIPT
RUN = RunDir(Path("/runs/first/1"))


def directives():
    return re.findall(r"^#SBATCH (--\S+)", SCRIPT.read_text(), re.MULTILINE)


def submitted():
    return sbatch.sbatch_options(Spec(), RUN.path)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing():
    done = subprocess.run(["shellcheck", "-x", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_shellcheck_is_not_silenced():
    assert "shellcheck disable" not in SCRIPT.read_text()


@pytest.mark.parametrize(
    "option",
    ["--ntasks-per-node=1", "--signal=USR1@120", "--requeue", "--open-mode=append"],
)
def test_both_doors_ask_for_the_same_life_cycle(option):
    assert option in directives()
    assert option in submitted()


def test_both_doors_have_the_same_time_limit():
    limits = [
        parse_or_zero(option.partition("=")[2])
        for option in [*directives(), *submitted()]
        if option.startswith("--time=")
    ]
    assert limits == [3600, 3600]


def test_directives_stand_before_the_first_command():
    lines = SCRIPT.read_text().splitlines()
    first_command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    directive_lines = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert len(directive_lines) == len(directives())
    assert max(directive_lines) < first_command


def test_the_file_that_is_submitted_is_this_file():
    argv = sbatch.sbatch_argv(Spec(), RUN)
    assert argv[-2] == f"{RUN.kit}/slurm_job_kit/slurm/ddp.sbatch"
    assert SCRIPT.is_file()


def test_bash_can_read_it():
    subprocess.run(["bash", "-n", SCRIPT], check=True)


@pytest.mark.parametrize("end", ["", "/", "//"])
def test_a_run_directory_is_not_to_be_a_link(tmp_path, end):
    """At a requeue `latest` may be another run."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1/spec.json").write_text("{}")
    (tmp_path / "latest").symlink_to("1")
    words = ["bash", str(SCRIPT), f"latest{end}"]
    env = {"SLURM_JOB_ID": "7", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert (
        f"is a link, which may lead elsewhere at a requeue: sbatch ... {tmp_path}/1" in done.stderr
    )


def test_a_run_directory_that_another_host_has_just_made_is_seen(hosts):
    """On a node that has looked for its files before."""
    run_dir = hosts.here / "1"
    run_dir.mkdir()
    names = ("spec.json", "setup.sh", "code", "kit")
    look(hosts.there, *names)
    for name in names[:2]:
        (run_dir / name).write_text("exit 1\n")
    (run_dir / "code/slurm_job_kit/jobs").mkdir(parents=True)
    (run_dir / "code/slurm_job_kit/jobs/rundir.py").write_text("")
    (run_dir / "kit").symlink_to("code")
    env = {"SLURM_JOB_ID": "7", "PATH": "/usr/bin:/bin"}
    words = ["bash", str(SCRIPT), str(hosts.there / "1")]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")  # it has got as far as setup.sh


def test_the_script_shows_how_the_endpoint_reaches_the_agents():
    """The script shows how the first node's address becomes the endpoint for each agent."""
    text = SCRIPT.read_text()
    steps = [
        'getent ahosts "${nodes[0]}"',
        '--head-address "$head_address"',
        "rdzv_endpoint=${opened#* }",
        'start_agents "$attempt" "$rdzv_endpoint"',
    ]
    places = [text.index(step) for step in steps]
    assert places == sorted(places)
    agent = (SCRIPT.parent / "agent.sh").read_text()
    assert (
        '-m slurm_job_kit.jobs.node "$kit_run_dir" "$kit_attempt" --rdzv-endpoint="$kit_endpoint"'
        in agent
    )


@pytest.mark.parametrize(
    ("found", "address"),
    [
        (["127.0.1.1", "10.0.0.5", "10.0.0.6"], "10.0.0.5"),
        (["fd00::5", "10.0.0.5"], "10.0.0.5"),  # IPv4 first, whatever the resolver's order
        (["fe80::1%eth0", "::1", "fd00::5", "fd00::6"], "fd00::5"),
        (["febf::1", "169.254.3.4", "127.0.0.1", "::1"], ""),
        (["127.0.1.1", "fd00::5"], "fd00::5"),
        ([], ""),  # getent then fails
    ],
)
def test_the_first_nodes_address_is_one_that_others_could_reach(tmp_path, found, address):
    getent = tmp_path / "getent"
    lines = [f"{each:<24} STREAM a" for each in found]
    answer = f"printf '%s\\n' '{chr(10).join(lines)}'" if found else "exit 2"
    getent.write_text(f'#!/bin/sh\n[ "$*" = "ahosts a" ] || exit 1\n{answer}\n')
    getent.chmod(0o755)
    assignment = re.search(r"^head_address=.*?'\)$", SCRIPT.read_text(), re.MULTILINE | re.DOTALL)
    assert assignment is not None
    text = f'set -euo pipefail\nnodes=(a b)\n{assignment[0]}\nprintf "%s" "$head_address"'
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == address


def test_a_job_does_not_inherit_what_would_change_its_commands(tmp_path):
    """CDPATH makes cd print a folder; PATH and HOME are missing after sbatch --export=NAME."""
    own_part = SCRIPT.read_text().partition("fail() {")[0]
    script = tmp_path / "script"
    script.write_text(f'{own_part}\ncd tmp && env && ulimit -S -n && cat <(echo "no POSIX")\n')
    hostile = {"CDPATH": "/", "POSIXLY_CORRECT": "1", "GREP_OPTIONS": "-v"}
    hostile |= {"SQUEUE_STATES": "PD", "SLURM_OVERLAP": "1"}
    hostile |= {"SLURM_CLUSTERS": "x", "SCONTROL_ALL": "1", "PYTHONINSPECT": "1"}
    hostile |= {"SLURM_CPU_BIND_TYPE": "x", "SLURM_TIMELIMIT": "1", "SRUN_EXPORT_ENV": "NONE"}
    hostile |= {"SLURM_EXTERNAL_LAUNCHER": "1", "SLURM_TRES_PER_TASK": "cpu=4"}  # since 23.11
    kept = {"SLURM_NTASKS_PER_NODE": "1", "SLURM_JOB_ID": "7", "OWN": "1"}
    (tmp_path / "tmp").mkdir()
    command = ["/bin/bash", "-c", f"ulimit -S -n 64; exec /bin/bash {script}"]
    done = subprocess.run(
        command, cwd=tmp_path, env=hostile | kept, capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 0, done.stderr
    seen = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert not seen & set(hostile) and {*kept, "PATH", "HOME"} <= seen
    assert "64" not in seen and "no POSIX" in seen


def test_a_job_inside_of_another_one_drops_what_is_left_of_that_one(tmp_path):
    """sbatch leaves variables of the job in which it runs: srun then fails (seen: Slurm 22.05)."""
    script = tmp_path / "script"
    script.write_text(SCRIPT.read_text().partition("fail() {")[0] + "env\n")
    own = {"SLURM_MEM_PER_NODE": "1500", "SLURM_CPUS_PER_TASK": "2", "SLURM_CPUS_ON_NODE": "2"}
    outer = {"SLURM_MEM_PER_CPU": "400", "SLURM_CPUS_PER_TASK": "4"}

    def seen(env):
        done = subprocess.run(["bash", script], env=env, capture_output=True, text=True, check=True)
        return {line for line in done.stdout.splitlines() if line.startswith("SLURM_")}

    assert seen(own) == {f"{name}={value}" for name, value in own.items()}
    assert seen(own | outer) == {"SLURM_CPUS_ON_NODE=2"}


def test_a_job_inside_of_another_one_has_no_array_gpus_or_restarts_of_that_one(tmp_path):
    """Seen on Slurm 22.05: with the array's task id the kit would requeue that one's job."""
    script, scontrol = tmp_path / "script", tmp_path / "scontrol"
    script.write_text(SCRIPT.read_text().partition("fail() {")[0] + "env\n")
    outer = {
        "ArrayTaskId=3 ": {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3"},
        "HetJobId=5 ": {"SLURM_HET_SIZE": "2"},
        "Restarts=2 ": {"SLURM_RESTART_COUNT": "2"},
        "GRES=gpu:a100:2(IDX:0-1)": {"SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_GPUS": "0,1"},
        "TresPerNode=gres:gpu:2": {"SLURM_GPUS_PER_NODE": "2"},
        "TresPerTask=gres:gpu:2": {"SLURM_GPUS_PER_TASK": "2"},
        "TresPerSocket=gres:gpu:2": {"SLURM_GPUS_PER_SOCKET": "2"},
        "TresPerJob=gres:gpu:2": {"SLURM_GPUS": "2"},
        "CpusPerTres=gres:gpu:2": {"SLURM_CPUS_PER_GPU": "2"},
    }
    env = {name: value for each in outer.values() for name, value in each.items()}
    env |= {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}

    def seen(shown):
        answer = f"JobId=8 Restarts=0 \n GRES=gpu\n\nJobId=7 {shown}\n GRES=\n WorkDir=/gpu"
        scontrol.write_text(f"#!/bin/sh\n[ \"$*\" = '-d show job 7' ] && echo '{answer}'\n")
        scontrol.chmod(0o755)
        done = subprocess.run(["bash", script], env=env, capture_output=True, text=True, check=True)
        lines = (line.partition("=") for line in done.stdout.splitlines())
        return {name: value for name, _, value in lines if name.startswith("SLURM_")}

    for sign, own in outer.items():
        first = " Restarts=0 " if "RESTART_COUNT" not in str(own) else ""
        assert seen(f"{first}{sign}") == {"SLURM_JOB_ID": "7", **own}


@pytest.mark.parametrize("script", ["ddp.sbatch", "agent.sh"])
def test_a_function_of_the_users_shell_is_no_builtin_of_the_kits_scripts(tmp_path, script):
    """A `cd` that lists the folder gave the batch script another run directory."""
    begin = {"ddp.sbatch": "set -euo", "agent.sh": "# --- the inherited environment"}[script]
    end = {"ddp.sbatch": "fail() {", "agent.sh": "mapfile -t kit_lines"}[script]
    part = (SCRIPT.parent / script).read_text().partition(begin)[2].partition(end)[0]
    copy = tmp_path / script
    copy.write_text(f"kit_attempt=1 kit_node_rank=0 # {part}cd /; module\n")
    functions = {"BASH_FUNC_cd%%": "() { echo wrong; }", "BASH_FUNC_module%%": "() { echo kept; }"}
    command, env = ["bash", copy], {"PATH": "/usr/bin:/bin", **functions}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "kept\n"


@pytest.mark.parametrize("option", ["--mem=2G", "--mem-per-cpu=100", "--mem-per-gpu=1G"])
def test_the_standby_shares_the_memory_of_the_attempt(tmp_path, option):
    """Where memory is a resource, a step that asks for any does not start beside the attempt."""
    (tmp_path / "run/standby").mkdir(parents=True)
    (tmp_path / "run/standby/after_s").touch()
    (tmp_path / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$@" "oom $SLURM_OOM_KILL_STEP"\n')
    (tmp_path / "srun").chmod(0o755)
    functions = re.findall(
        r"^start_\w+\(\) \{$.*?^\}$", SCRIPT.read_text(), re.MULTILINE | re.DOTALL
    )
    start = f"""set -euo pipefail
        srun_help=--overlap run_dir={tmp_path}/run nodes=(a b) agent=(python)
        srun_args=(--cpus-per-task=2 {option} --mem-bind=local)
        {chr(10).join(functions)}
        start_standby
        wait "$standby" """
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": "/no/such/folder"}
    done = subprocess.run(
        ["bash", "-c", start], env=env, capture_output=True, text=True, check=True
    )
    words = done.stdout.splitlines()
    assert {"--overlap", "--mem=0", "--export=ALL", "oom 0"} <= set(words)
    assert {"--cpus-per-task=2", "--mem-bind=local"} <= set(words) and option not in words


# Stands for `attempt watch`: Python needs a moment until it blocks the signals.
WATCH = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1, signal.SIGQUIT])
arrived = signal.sigtimedwait([signal.SIGTERM, signal.SIGUSR1, signal.SIGQUIT], 20)
print(arrived and signal.Signals(arrived.si_signo).name)
"""


@pytest.mark.parametrize("name", ["USR1", "TERM", "QUIT"])
def test_a_signal_that_comes_while_watch_starts_reaches_it(tmp_path, name):
    """Before it blocks the signals, one would end it, or be ignored."""
    text = SCRIPT.read_text()
    traps = text[text.index("stop='' watch=''") : text.index("# start_agents ATTEMPT")]
    (tmp_path / "watch.py").write_text(WATCH)
    start = f"""{traps}
        (ignore_stops && sleep 0.3 && exec '{sys.executable}' '{tmp_path}/watch.py') &
        watch=$!
        kill -s {name} $$
        while kill -0 "$watch" 2>/dev/null; do wait "$watch" || true; done
        printf '%s\n' "$stop" """
    done = subprocess.run(["bash", "-euc", start], capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == ([f"SIG{name}", f"SIG{name}"], "")


def test_the_batch_script_and_the_agents_handle_the_same_stop_signals():
    names = {number.name.removeprefix("SIG") for number in STOP_SIGNALS}
    text = SCRIPT.read_text()
    assert set(re.findall(r"^trap 'stopped (\w+)' \1$", text, re.MULTILINE)) == names
    ignored = re.search(r"^    trap '' ([A-Z0-9 ]+)$", text, re.MULTILINE)
    assert ignored is not None and set(ignored[1].split()) == names
    codes = re.search(
        r"^    ([0-9 |]+)\) exit", (SCRIPT.parent / "agent.sh").read_text(), re.MULTILINE
    )
    assert codes is not None
    assert {int(code) - 128 for code in codes[1].split("|")} == {int(each) for each in STOP_SIGNALS}


# The batch script's own lines, and those of `adopt`, stand in the job's log.
TIME = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d error: "


def test_a_line_of_the_batch_script_begins_with_the_time(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    env = {**os.environ, "SLURM_JOB_ID": "7"}
    command = ["bash", str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.match(rf"{TIME}{tmp_path}/spec.json is missing", done.stderr)


def test_a_job_whose_interpreter_is_gone_ends_for_good(fake_slurm, tmp_path):
    """Slurm would hold or repeat an expedited job that ends with the shell's 127."""
    for name in ("spec.json", "code", "kit/slurm_job_kit/jobs/rundir.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "setup.sh").write_text("KIT_PYTHON=/no/such/python\n")
    env = {**os.environ, "SLURM_JOB_ID": "7"}
    command = ["bash", str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search(rf"{TIME}/no/such/python, which submitted the run", done.stderr)
    assert fake_slurm.calls[-1] == "scontrol update JobId=7 Requeue=0"


def test_a_line_of_adopt_begins_with_the_time(fake_slurm, tmp_path):
    env = {**os.environ, "SLURM_JOB_ID": "7", "KIT_RUNS": str(tmp_path)}
    command = [sys.executable, "-m", "jobs", "adopt", "no_such.yaml"]
    done = subprocess.run(command, env=env, cwd=SCRIPT.parents[2], capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    assert re.match(rf"{TIME}no_such.yaml: cannot be read", done.stderr)
