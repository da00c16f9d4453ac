"""The batch script: no shellcheck findings, and the same defaults as the spec."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from slurm_job_kit.jobs.base.stop_signals import STOP_SIGNALS
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.jobs.slurm import sbatch
from slurm_job_kit.jobs.slurm.duration import parse_or_zero

SCRIPT = Path(__file__).resolve().parents[2] / "slurm/ddp.sbatch"
REST = SCRIPT.with_name("ddp_prepare.sh")
RUN = RunDir(Path("/runs/first/1"))


def test_both_doors_ask_for_the_same_life_cycle():
    """Slurm reads the directives of the file that `submit` gives to sbatch, too."""
    head, _, _ = SCRIPT.read_text().partition("\nset -euo")
    directives = re.findall(r"^#SBATCH (--\S+)", head, re.MULTILINE)
    submitted = sbatch.sbatch_options(Spec(), RUN.path)
    same = {"--signal=USR1@120", "--requeue", "--open-mode=append"}
    assert same <= {*directives} and same <= {*submitted}
    limits = [each.partition("=")[2] for each in [*directives, *submitted] if "--time=" in each]
    assert [parse_or_zero(limit) for limit in limits] == [3600, 3600]
    assert sbatch.sbatch_argv(Spec(), RUN)[-2] == f"{RUN.kit}/slurm_job_kit/slurm/{SCRIPT.name}"


def start(run_dir, cwd=None, script=SCRIPT, **variables):
    """The ended batch script of job 7."""
    env = {**os.environ, "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "a", **variables}
    command = ["bash", str(script), str(run_dir)]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=100)


@pytest.fixture
def spooled(tmp_path):
    """The copy of the script that slurmd runs: nothing lies beside it."""
    (tmp_path / "spool").mkdir()
    return shutil.copy(SCRIPT, tmp_path / "spool/slurm_script")


@pytest.fixture
def clones(tmp_path):
    """Two clones, and an interpreter that prints the one whose code it would run."""
    for name in ("called", "script"):
        (tmp_path / name / "slurm").mkdir(parents=True)
        shutil.copy(REST, tmp_path / name / "slurm")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\npwd >&2\nexit 1\n")
    python.chmod(0o755)
    return {"SLURM_SUBMIT_DIR": f"{tmp_path}/called", "KIT_PYTHON": str(python)}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_a_config_is_frozen_by_the_clone_where_sbatch_was_called_if_it_is_the_users(
    fake_slurm, tmp_path, spooled, clones
):
    command = f"   Command={tmp_path}/script/slurm/ddp.sbatch x.yaml\n"
    fake_slurm.answer("scontrol", when="show job 7", output=command)
    assert start("x.yaml", script=spooled, **clones).stderr == f"{tmp_path}/called\n"
    os.chown(tmp_path / "called/slurm" / REST.name, 65534, -1)
    assert start("x.yaml", script=spooled, **clones).stderr == f"{tmp_path}/script\n"
    shutil.rmtree(tmp_path / "script")
    done = start("x.yaml", script=spooled, **clones)
    assert done.returncode == 1 and "make resume RUN=x.yaml (kit resume x.yaml)" in done.stderr


@pytest.mark.parametrize("words", ["run", "sweep"])
def test_a_job_of_a_run_takes_the_rest_of_the_script_from_its_frozen_kit(tmp_path, spooled, words):
    kit = tmp_path / "run/kit/slurm_job_kit/slurm"
    kit.mkdir(parents=True)
    (kit / REST.name).write_text("echo frozen >&2; exit 1\n")
    (tmp_path / "sweep/points").mkdir(parents=True)
    (tmp_path / "sweep/points/3").symlink_to("../../run")
    done = start(tmp_path / words, script=spooled, SLURM_ARRAY_TASK_ID="3")
    assert (done.returncode, done.stderr) == (1, "frozen\n")


def test_a_run_directory_is_not_to_be_a_link(tmp_path):
    """At a requeue `latest` may be another run."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1/spec.json").write_text("{}")
    (tmp_path / "latest").symlink_to("1")
    done = start("latest/", cwd=tmp_path)
    words = f"is a link, which may lead elsewhere at a requeue: sbatch ... {tmp_path}/1"
    assert done.returncode == 1 and words in done.stderr


@pytest.mark.parametrize(
    ("found", "address"),
    [
        (["127.0.1.1", "10.0.0.5", "10.0.0.6"], "10.0.0.5"),
        (["fd00::5", "10.0.0.5"], "10.0.0.5"),  # IPv4 first, whatever the resolver's order
        (["fe80::1%eth0", "::1", "fd00::5", "fd00::6"], "fd00::5"),
        (["febf::1", "169.254.3.4", "127.0.0.1", "::1"], ""),
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
    text = f'set -euo pipefail\nfirst=a\n{assignment[0]}\nprintf "%s" "$head_address"'
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == address


# The part of the script that removes variables, and raises limits.
OWN_PART = REST.read_text().partition("# --- the end of the job")[0]


def test_a_job_does_not_inherit_what_would_change_its_commands(tmp_path):
    """CDPATH makes cd print a folder; PATH and HOME are missing after sbatch --export=NAME."""
    script = tmp_path / "script"
    script.write_text(f'{OWN_PART}\ncd tmp && env && ulimit -S -n && cat <(echo "no POSIX")\n')
    hostile = {"CDPATH": "/", "POSIXLY_CORRECT": "1", "GREP_OPTIONS": "-v"}
    hostile |= {"SLURM_CLUSTERS": "x", "SCONTROL_ALL": "1", "PYTHONINSPECT": "1"}
    kept = {"SLURM_NTASKS_PER_NODE": "1", "SLURM_JOB_ID": "7", "OWN": "1"}
    (tmp_path / "tmp").mkdir()
    command = ["/bin/bash", "-c", f"ulimit -S -n 64; exec /bin/bash {script}"]
    done = subprocess.run(
        command, cwd=tmp_path, env=hostile | kept, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    seen = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert not seen & set(hostile) and {*kept, "PATH", "HOME"} <= seen
    assert "64" not in seen and "no POSIX" in seen


@pytest.mark.parametrize(
    ("shown", "has_task"), [("ArrayTaskId=3 ", True), ("Restarts=0 ", False), (None, True)]
)
def test_a_job_inside_of_an_arrays_task_has_no_task_id_of_that_one(
    fake_slurm, tmp_path, shown, has_task
):
    """Seen on Slurm 22.05: with the array's task id the kit would requeue that one's job."""
    script = tmp_path / "script"
    script.write_text(f"{OWN_PART}env\n")
    answer = {"output": f"JobId=7 {shown}\n"} if shown else {"status": 1}
    fake_slurm.answer("scontrol", when="show job 7", **answer)
    outer = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3"}
    env = {**os.environ, "SLURM_JOB_ID": "7", **outer}
    done = subprocess.run(["bash", script], env=env, capture_output=True, text=True, check=True)
    assert ("SLURM_ARRAY_TASK_ID=3" in done.stdout.splitlines()) == has_task
    assert ("SLURM_ARRAY_JOB_ID=5" in done.stdout.splitlines()) == has_task


@pytest.mark.parametrize("script", [REST.name, "agent.sh"])
def test_a_function_of_the_users_shell_is_no_builtin_of_the_kits_scripts(tmp_path, script):
    """A `cd` that lists the folder gave the batch script another run directory."""
    end = {REST.name: "# --- the end of the job", "agent.sh": "mapfile -t kit_lines"}[script]
    text = (SCRIPT.parent / script).read_text()
    part = text.partition("# --- the inherited")[2].partition(end)[0]
    copy = tmp_path / script
    copy.write_text(f"kit_attempt=1 kit_node_rank=0 # {part}cd /; module\n")
    functions = {"BASH_FUNC_cd%%": "() { echo wrong; }", "BASH_FUNC_module%%": "() { echo kept; }"}
    command, env = ["bash", copy], {"PATH": "/usr/bin:/bin", **functions}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "kept\n"


def test_the_batch_script_and_the_agents_handle_the_same_stop_signals():
    names = {number.name.removeprefix("SIG") for number in STOP_SIGNALS}
    stops = re.search(r"^stops=\(([A-Z0-9 ]+)\)", REST.read_text(), re.MULTILINE)
    assert stops is not None and set(stops[1].split()) == names
    codes = re.search(
        r"^    ([0-9 |]+)\) exit", (SCRIPT.parent / "agent.sh").read_text(), re.MULTILINE
    )
    assert codes is not None
    assert {int(code) - 128 for code in codes[1].split("|")} == {int(each) for each in STOP_SIGNALS}


def run_with_setup(folder, text):
    for name in ("spec.json", "code/x", "kit/slurm_job_kit/jobs/contract/rundir.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "setup.sh").write_text(text)


@pytest.mark.parametrize("has_block", [True, False])
def test_a_stop_while_the_batch_script_starts_is_kept_for_python(fake_slurm, tmp_path, has_block):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho started; exec grep ShdPnd /proc/self/status\n")
    python.chmod(0o755)
    fake_slurm.answer("scontrol", output="a\n")
    if not has_block:  # as of coreutils 8.30
        (fake_slurm.bin / "env").write_text("#!/bin/sh\nexit 125\n")
        (fake_slurm.bin / "env").chmod(0o755)
    run_with_setup(tmp_path, f"KIT_PYTHON={python}; kill -TERM $$\n")
    done = start(tmp_path, SLURM_JOB_NODELIST="a")
    if has_block:
        assert done.stdout.split() == ["started", "ShdPnd:", f"{1 << signal.SIGTERM - 1:016x}"]
    assert done.returncode == (0 if has_block else -signal.SIGTERM), done.stderr


# The batch script's own lines, and those of `adopt`, stand in the job's log.
TIME = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d error: "


def test_a_job_whose_interpreter_is_gone_ends_for_good(fake_slurm, tmp_path):
    """Slurm would hold or repeat an expedited job that ends with the shell's 127."""
    run_with_setup(tmp_path, "KIT_PYTHON=/no/such/python\n")
    done = start(tmp_path)
    assert done.returncode == 1
    assert re.search(rf"{TIME}/no/such/python cannot be executed on ", done.stderr)
    assert fake_slurm.calls[-1] == "scontrol update JobId=7 Requeue=0"


@pytest.mark.parametrize(
    ("variables", "host", "is_first"),
    [
        ({"SLURMD_NODENAME": "n1"}, "ip-10-0-0-1", True),  # a cloud: the host has another name
        ({"SLURMD_NODENAME": "n2"}, "n1", False),  # several slurmd on one host
        ({}, "n1.cluster", True),
        ({"SLURM_JOB_NODELIST": "n[1-2].cluster"}, "n1", True),  # and SLURMD_NODENAME is unset
        ({}, "login", False),  # salloc
    ],
)
def test_the_batch_script_runs_on_the_first_node_of_its_job_alone(
    fake_slurm, tmp_path, variables, host, is_first
):
    """Elsewhere the rendezvous would have the address of this host."""
    (tmp_path / "checkpoints").mkdir()  # a run that has lost its spec
    uname = fake_slurm.bin / "uname"
    uname.write_text(f"#!/bin/sh\necho {host}\n")
    uname.chmod(0o755)
    fake_slurm.answer("scontrol", output="n1\nn2\n", when="show hostnames n?1-2?")
    both = "n1.cluster\nn2.cluster\n"
    fake_slurm.answer("scontrol", output=both, when="show hostnames n?1-2?.cluster")
    done = start(tmp_path, **{"SLURM_JOB_NODELIST": "n[1-2]", "SLURMD_NODENAME": ""} | variables)
    here = variables.get("SLURMD_NODENAME", host)
    refused = f"{here} is not the first node of job 7, n1"
    assert (refused in done.stderr) == (not is_first), done.stderr
    assert done.returncode == 1
