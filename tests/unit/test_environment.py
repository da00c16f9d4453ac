"""What each door of the kit does with the variables and limits that it inherits."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from slurm_job_kit.jobs import environment
from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.environment import Door, Treatment
from slurm_job_kit.jobs.node import agent
from slurm_job_kit.jobs.rundir import RunDir
from slurm_job_kit.jobs.runs import code_snapshot
from slurm_job_kit.jobs.runs.freeze import provenance
from slurm_job_kit.jobs.slurm import client, job_list
from slurm_job_kit.jobs.spec import Launch, Spec

REPOSITORY = Path(__file__).resolve().parents[2]
BOTH = (Treatment.REMOVE, Treatment.WARN)
# Each would change what Slurm's clients print, or which jobs they show.
OF_CLIENTS = {
    "SQUEUE_STATES": "PD",
    "SQUEUE_NAMES": "x",
    "SINFO_PARTITION": "x",
    "SACCT_FORMAT": "user",
    "SCONTROL_ALL": "1",
    "SCANCEL_INTERACTIVE": "1",
    "SLURM_TIME_FORMAT": "relative",
    "SLURM_CLUSTERS": "other",
    "SLURM_BITSTR_LEN": "8",
}


def unset_words(script, which=0):
    """The words of an `unset` of a script, or of the `for` before it."""
    text = (REPOSITORY / "slurm" / script).read_text()
    lists = re.findall(r"^(?:unset|for kit_name in) \\\n((?:    .*\n)+)", text, re.MULTILINE)
    lines = [line.removesuffix("; do") for line in lists[which].replace("\\\n", "\n").splitlines()]
    return " ".join(lines[: 1 + next((i for i, x in enumerate(lines) if ";" in x), len(lines))])


@pytest.mark.parametrize(
    ("script", "which", "door", "treatments"),
    [
        ("agent.sh", 0, Door.AGENT, (Treatment.WARN,)),
        ("agent.sh", 1, Door.AGENT, (Treatment.REMOVE,)),
    ],
)
def test_the_scripts_remove_what_the_table_says(script, which, door, treatments):
    words = unset_words(script, which).split()
    families = [family for family in environment.TABLE if family.at(door) in treatments]
    names = [name for family in families for name in family.names]
    # As bash names all variables with a prefix.
    expected = [f'"${{!{name[:-1]}@}}"' if name.endswith("*") else name for name in names]
    assert words[: len(expected)] == expected
    # The `for` has a body, which begins behind the names.
    assert len(words) == len(expected) or words[len(expected)] == "[["


# What an enclosing job leaves, by the sign in its own record with which a job has it itself.
OF_OTHER_JOBS = {
    " HetJobId=5 ": {"SLURM_HET_SIZE": "2"},
    " Restarts=2 ": {"SLURM_RESTART_COUNT": "2"},
    "GRES=gpu:a100:2(IDX:0-1)": {"SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_GPUS": "0,1"},
    "TresPerNode=gres:gpu:2": {"SLURM_GPUS_PER_NODE": "2"},
    "TresPerTask=gres:gpu:2": {"SLURM_GPUS_PER_TASK": "2"},
    "TresPerSocket=gres:gpu:2": {"SLURM_GPUS_PER_SOCKET": "2"},
    "TresPerJob=gres:gpu:2": {"SLURM_GPUS": "2"},
    "CpusPerTres=gres:gpu:2": {"SLURM_CPUS_PER_GPU": "2"},
}


@pytest.mark.parametrize("sign", OF_OTHER_JOBS)
def test_a_job_inside_of_another_one_has_no_gpus_or_restarts_of_that_one(sign):
    """Seen on Slurm 22.05. With the last task of an array Slurm shows the other tasks, too."""
    left = {name: value for each in OF_OTHER_JOBS.values() for name, value in each.items()}
    environ = {"SLURM_JOB_ID": "7", **left}
    first = "" if "Restarts" in sign else " Restarts=0 "
    shown = f"JobId=8 Restarts=0 \n GRES=gpu\n\nJobId=7 {first}{sign}\n GRES=\n WorkDir=/gpu\n"
    found = environment.of_enclosing_job(environ, shown)
    assert sorted(found) == sorted(set(left) - set(OF_OTHER_JOBS[sign]))
    assert environment.of_enclosing_job(environ, "") == []  # slurmctld does not answer


def test_slurm_is_asked_only_about_variables_that_may_be_of_an_enclosing_job(slurm, monkeypatch):
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "2")
    client.drop_enclosing_job()
    assert slurm.calls == [] and os.environ["SLURM_CPUS_PER_TASK"] == "2"
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        monkeypatch.setenv(name, "2")
    slurm.answer("scontrol", "JobId=7 JobName=x\n   Restarts=0 \n   TresPerNode=gres:gpu:2\n")
    client.drop_enclosing_job()
    assert slurm.calls == ["scontrol -d show job 7"]
    assert os.environ.get("SLURM_GPUS_PER_NODE") == "2" and "SLURM_GPUS_ON_NODE" not in os.environ


def test_a_job_inside_of_another_one_has_no_memory_or_cores_of_that_one():
    """srun then fails (seen: Slurm 22.05)."""
    own = {"SLURM_MEM_PER_NODE": "1500", "SLURM_CPUS_PER_TASK": "2", "SLURM_CPUS_ON_NODE": "2"}
    assert environment.of_enclosing_job(own, "") == []
    both = own | {"SLURM_MEM_PER_CPU": "400", "SLURM_CPUS_PER_TASK": "4"}
    expected = ["SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_NODE"]
    assert sorted(environment.of_enclosing_job(both, "")) == expected


def test_the_docs_have_the_table():
    text = (REPOSITORY / "docs/environments.md").read_text()
    assert environment.markdown() in text, "make schema"


def test_slurms_clients_get_no_filter_and_no_format_of_the_user(slurm, monkeypatch):
    for name, value in OF_CLIENTS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("SLURM_CONF", "/etc/x")
    for name, ask in {
        "squeue": lambda: job_list.queue([os.getuid()]),
        "scontrol": lambda: client.show_job("7"),
        "scancel": lambda: client.cancel("7"),
    }.items():
        ask()
        seen = environ_of(slurm, name)
        assert not set(seen) & set(OF_CLIENTS) - {"SLURM_TIME_FORMAT"}
        assert seen.get("SLURM_TIME_FORMAT", "%s") == "%s"
        assert (seen["LC_ALL"], seen["SLURM_CONF"]) == ("C", "/etc/x")


def environ_of(slurm, name):
    lines = (slurm.folder / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_the_job_gets_the_users_defaults_but_nothing_that_breaks_it(slurm, monkeypatch, capfd):
    kept = {"SBATCH_ACCOUNT": "lab", "SBATCH_EXPORT": "NONE", "SBATCH_MEM_PER_NODE": "4G"}
    gone = {
        "SBATCH_WAIT": "1",
        "SBATCH_ARRAY_INX": "0-3",
        "SBATCH_CLUSTERS": "other",
        "SLURM_HINT": "nomultithread",
        "SLURM_OVERLAP": "1",
        "SRUN_DEBUG": "3",
        "PET_STANDALONE": "1",
        "RANK": "3",
        "MASTER_ADDR": "x",
        "TORCHELASTIC_RUN_ID": "1",
        "MAKEFLAGS": "n -- SET=train.lr=9",
        "KIT_SET": "train.lr=9",
        "KIT_RUN_DIR": "/x",
        "PMI_RANK": "1",
        "KIT_SUCCEEDS": "1:7",
    }
    for name, value in {**kept, **gone, "CUDA_VISIBLE_DEVICES": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main(["submit", "tiny.yaml", "--no-check"]) == 0
    seen = environ_of(slurm, "sbatch")
    assert {name: seen.get(name) for name in kept} == kept and not set(seen) & set(gone)
    assert seen["CUDA_VISIBLE_DEVICES"] == "1"  # outside of a job it is the user's own
    said = capfd.readouterr().err
    for name in ("PET_STANDALONE=1", "SBATCH_WAIT=1", "SLURM_HINT=nomultithread"):
        assert re.search(rf"warning: .*{name}.* not passed on", said)
    assert "sbatch takes options from the environment, too: SBATCH_ACCOUNT=lab" in said


def test_a_submit_inside_of_a_job_passes_nothing_of_that_job_on(slurm, monkeypatch, capfd):
    job = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "9", "SLURMD_NODENAME": "a", "SLURM_HINT": "x"}
    job |= {"CUDA_VISIBLE_DEVICES": "0", "SBATCH_CPU_BIND": "x", "SLURM_CPU_BIND": "quiet"}
    for name, value in {**job, "SBATCH_ACCOUNT": "lab", "SLURM_JWT": "t"}.items():
        monkeypatch.setenv(name, value)
    assert main(["submit", "tiny.yaml", "--no-check"]) == 0
    seen = environ_of(slurm, "sbatch")
    assert not set(seen) & set(job) and seen["SLURM_JWT"] == "t"
    assert seen["SBATCH_ACCOUNT"] == "lab"  # of the user's shell, as for the enclosing job
    assert "SLURM_" not in capfd.readouterr().err


def test_git_looks_at_the_repository_that_it_is_asked_about(tmp_path, monkeypatch):
    for name in ("mine", "other"):
        subprocess.run(["git", "init", "-q", tmp_path / name], check=True)
        (tmp_path / name / name).write_text("1\n")
        subprocess.run(["git", "-C", tmp_path / name, "add", "."], check=True)
    other = str(tmp_path / "other")
    for name, value in {
        "GIT_DIR": f"{other}/.git",
        "GIT_WORK_TREE": other,
        "GIT_INDEX_FILE": f"{other}/.git/index",
        "GIT_EXTERNAL_DIFF": "true",
        "GIT_TRACE": f"{tmp_path}/trace",
    }.items():
        monkeypatch.setenv(name, value)
    mine = tmp_path / "mine"
    assert code_snapshot.git(mine, "ls-files") == "mine"
    (mine / "mine").write_text("2\n")
    assert "+2" in (code_snapshot.git(mine, "diff") or "")
    assert not (tmp_path / "trace").exists()


def test_git_keeps_the_users_configuration(tmp_path, monkeypatch):
    for name, value in {"COUNT": "1", "KEY_0": "kit.colour", "VALUE_0": "blue"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    assert code_snapshot.git(tmp_path, "config", "kit.colour") == "blue"


@pytest.mark.parametrize(
    ("key", "value"),
    [("diff.external", "true"), ("color.ui", "always"), ("diff.noprefix", "true")],
)
def test_the_recorded_changes_have_the_form_that_git_apply_takes(tmp_path, monkeypatch, key, value):
    def run_git(*words, text=None):
        argv = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True, input=text)

    run_git("init", "-q")
    (tmp_path / "a.py").write_text("1\n")
    run_git("add", ".")
    run_git("commit", "-qm", "x")
    (tmp_path / "a.py").write_text("2\n")
    for name, text in {"COUNT": "1", "KEY_0": key, "VALUE_0": value}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", text)
    diff = provenance(tmp_path, "c", "python3").git_diff
    run_git("checkout", "-q", ".")
    run_git("apply", text=f"{diff}\n")
    assert (tmp_path / "a.py").read_text() == "2\n"


def test_torchrun_gets_no_option_from_the_environment():
    inherited = {"PET_STANDALONE": "1", "PET_NO_PYTHON": "1", "RANK": "3", "LOGLEVEL": "debug"}
    inherited |= {"PYTHON_EXEC": "/bin/false", "OWN": "1", "NCCL_DEBUG": "INFO", "LD_PRELOAD": "x"}
    passed = environment.variables_for(inherited, Door.TORCHRUN)
    assert set(passed) == {"OWN", "NCCL_DEBUG", "LD_PRELOAD"}
    assert environment.variables_for({"LOGLEVEL": "DEBUG"}, Door.TORCHRUN) == {"LOGLEVEL": "DEBUG"}
    (options, level) = environment.warnings(inherited, Door.TORCHRUN)
    assert "PET_STANDALONE=1" in options + level and "LOGLEVEL=debug" in options + level


@pytest.mark.parametrize(
    ("name", "value", "is_passed"),
    [
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", False),
        ("TORCH_DISTRIBUTED_DEBUG", "2", False),
        ("TORCH_DISTRIBUTED_DEBUG", "info", True),
        ("NCCL_COMM_ID", "10.0.0.1:5000", False),
        ("NCCL_IB_HCA", "mlx5", True),
    ],
)
def test_the_ranks_get_no_variable_that_ends_torch_or_moves_nccl(name, value, is_passed):
    assert environment.variables_for({name: value}, Door.TORCHRUN) == (
        {name: value} if is_passed else {}
    )
    warned = "".join(environment.warnings({name: value}, Door.TORCHRUN))
    assert (f"{name}={value}" in warned) is not is_passed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PET_NNODES", "2"),
        ("PYTHONHOME", "/x"),
        ("PYTHONINSPECT", "1"),
        ("LOGLEVEL", "debug"),
        ("TMPDIR", "/scratch/" + "x" * 90),
        ("RANK", "1"),
        ("KIT_ATTEMPT", "1"),
        ("SLURM_JOB_ID", "1"),
        ("TORCHELASTIC_RUN_ID", "1"),
    ],
)
def test_launch_env_may_not_break_the_start(refuse, name, value):
    text = f"name: x\nlaunch:\n  env:\n    {name}: '{value}'\n"
    assert re.search(rf"x.yaml:4: launch.env.{name}: .*\n  hint: ", refuse(text))


def test_what_launch_env_may_set_stays_the_users_word(take):
    names = ("OMP_PROC_BIND", "PYTHONWARNINGS", "GLOO_SOCKET_IFNAME", "NODE_RANK", "MAKEFLAGS")
    spec = take("launch:\n  env:\n" + "".join(f"    {name}: x\n" for name in names))
    assert list(spec.launch.env) == list(names)
    (line,) = environment.notes({}, spec, [])
    assert "OMP_PROC_BIND=x" in line and "one core" in line


@pytest.mark.parametrize(
    ("umask", "dir_mode", "problem"),
    [
        (0o077, "0700", ""),
        (0o000, "0700", ""),
        (0o027, "0750", ""),
        (0o077, "0750", "cannot read it\n  hint: umask 0027"),
        (0o000, "0755", "may change it\n  hint: umask 0022"),
        (0o002, "2770", ""),
    ],
)
def test_a_umask_that_contradicts_the_mode_of_the_run_directory(umask, dir_mode, problem):
    before = os.umask(umask)
    try:
        lines = environment.umask_problem(dir_mode)
        assert problem in "".join(lines) and bool(problem) == bool(lines)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)


def test_a_low_hard_limit_is_named():
    script = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
    script += "from slurm_job_kit.jobs import environment; print(environment.low_limits())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "64 open files (ulimit -n)" in done.stdout, done.stderr


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    attempt_dir = RunDir(tmp_path / "run").attempt(1)
    attempt_dir.path.mkdir(parents=True)
    return attempt_dir


def test_a_long_tmpdir_gets_a_short_name_for_the_ranks(attempt, tmp_path):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    env = os.environ | {"TMPDIR": str(long)}
    with agent.temporary_directory(attempt, 0, env):
        assert os.path.samefile(env["TMPDIR"], long)
        script = "import multiprocessing.connection as m; m.Listener(family='AF_UNIX').close()"
        argv = [sys.executable, "-c", script]
        done = subprocess.run(argv, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (long / "kept").touch()
    assert (long / "kept").exists() and not os.path.lexists(env["TMPDIR"])


@pytest.mark.parametrize("make", [lambda path: None, Path.touch])
def test_a_tmpdir_that_this_node_lacks_is_not_used(attempt, tmp_path, capfd, make):
    make(tmp_path / "gone")
    env = {"TMPDIR": str(tmp_path / "gone")}
    with agent.temporary_directory(attempt, 0, env) as folder:
        assert Path(folder).is_dir() and "TMPDIR" not in env
    assert f"TMPDIR={tmp_path}/gone is no folder" in capfd.readouterr().err


def test_the_agent_warns_of_what_setup_or_launch_env_binds(monkeypatch, capfd):
    monkeypatch.setenv("PET_TEE", "3")
    agent.warn_of_environment(Spec(launch=Launch(env={"GOMP_CPU_AFFINITY": "0"})))
    said = capfd.readouterr().err
    assert "PET_TEE=3" in said and "GOMP_CPU_AFFINITY=0" in said


def test_a_job_gets_no_devices_and_shell_options_of_what_surrounds_the_submit():
    environ = {"SLURM_JOB_ID": "7", "HIP_VISIBLE_DEVICES": "0", "NVIDIA_VISIBLE_DEVICES": "0"}
    environ |= {"WANDB_SERVICE": "2-1-tcp", "SHELLOPTS": "noclobber", "BASHOPTS": "nullglob"}
    environ |= {"WANDB_API_KEY": "own"}
    assert environment.variables_for(environ, Door.SBATCH) == {"WANDB_API_KEY": "own"}
