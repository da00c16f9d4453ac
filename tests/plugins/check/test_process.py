"""Submit starts the check in a process of its own, limits it, and shows what it found."""

from pathlib import Path

import pytest

from slurm_job_kit.jobs.config.load import load
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.problems import Problem, SpecError
from slurm_job_kit.jobs.contract.spec import Launch, Slurm, Spec
from slurm_job_kit.jobs.plugins.check import hooks as check
from slurm_job_kit.jobs.runs.freeze import freeze
from tests.core.waiting import is_running, wait_for

pytestmark = pytest.mark.long  # the check imports torch in a process of its own


NET = "from torch import nn\ndef net(hidden):\n    return nn.Linear(64, 10)\n"
CONFIG = """\
name: x
train:
  epochs: 1
  model: mine:nett
  model_args: {hidden: 3}
"""


@pytest.fixture
def frozen(tmp_path, monkeypatch):
    """`frozen(text)`: (loaded, run directory) of a spec, with a frozen repository of one module."""
    monkeypatch.setenv("KIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "mine.py").write_text(NET)

    def begun(text=CONFIG, **files):
        for name, content in files.items():
            (repository / f"{name}.py").write_text(content)
        Path("x.yaml").write_text(text)
        loaded = load(Path("x.yaml"))
        with freeze(loaded, repository) as run_dir:
            pass
        return loaded, run_dir

    return begun


@pytest.fixture
def interpreter(tmp_path):
    """`interpreter(body, launch)`: a spec whose launch.python is a shell script."""

    def written(body, launch=""):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return f"name: x\nlaunch: {{python: {path}{launch}}}\n"

    return written


def test_a_typo_is_shown_with_file_line_key_and_hint_and_writes_nothing(frozen):
    loaded, run_dir = frozen()
    before = sorted(run_dir.path.rglob("*"))
    with pytest.raises(SpecError) as caught:
        check.check(loaded, run_dir)
    (problem,) = caught.value.problems
    assert (problem.place.where, problem.path) == ("x.yaml:4", ("train", "model"))
    assert problem.what.startswith("mine:nett: module 'mine' has no attribute")
    assert sorted(run_dir.path.rglob("*")) == before


def reports(error=None, *, folder):
    """The body of an interpreter that copies this report to its last argument."""
    records.write(folder / "prepared.json", error or Problem((), ""))
    return f'cp {folder}/prepared.json "$4"'


def test_warnings_are_shown_and_refuse_nothing(frozen, interpreter, tmp_path, capfd):
    frames = ("net.py:3, in f: x.cuda()",)
    error = Problem(("train", "model"), "needs a GPU", "h", is_error=False, frames=frames)
    check.check(*frozen(interpreter(reports(error, folder=tmp_path))))
    printed = capfd.readouterr().err.splitlines()
    assert printed[:3] == [
        "warning: x.yaml:1: train.model: needs a GPU",
        "  net.py:3, in f: x.cuda()",
        "  hint: h",
    ]
    assert printed[3].startswith("checked model, data and objective in ")


def test_the_process_has_the_ranks_code_and_variables_and_no_gpu(
    frozen, interpreter, tmp_path, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    body = f"env -0 >{tmp_path}/env; pwd -P >{tmp_path}/pwd; " + reports(folder=tmp_path)
    loaded, run_dir = frozen(interpreter(body, ", env: {OWN: a}, nproc_per_node: 3"))
    check.check(loaded, run_dir)
    env = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().split("\0")[:-1])
    assert (env["CUDA_VISIBLE_DEVICES"], env["OWN"], env["WORLD_SIZE"]) == ("", "a", "3")
    assert env["PYTHONPATH"].split(":")[0] == str(run_dir.code)
    assert env["LOCAL_WORLD_SIZE"] == "3"
    assert "MASTER_ADDR" not in env and "KIT_ATTEMPT" not in env
    assert Path((tmp_path / "pwd").read_text().strip()) == run_dir.code.resolve()


def test_the_limit_ends_the_process_with_its_children_and_the_submit_goes_on(
    frozen, interpreter, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(check, "LIMIT_S", 3.0)
    run = frozen(interpreter(f"sleep 300 & echo $! >{tmp_path}/child; wait"))
    check.check(*run)
    assert "not checked: the check was ended after 3 s" in capfd.readouterr().err
    wait_for(lambda: not is_running((tmp_path / "child").read_text().strip()))


def test_a_process_that_fails_refuses_nothing_and_its_last_line_is_shown(
    frozen, interpreter, capfd
):
    check.check(*frozen(interpreter("echo libcuda is missing >&2; exit 3")))
    assert "not checked: the check ended with status 3: libcuda" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (Spec(launch=Launch(command_prefix=["apptainer", "exec"])), "or a container has"),
        (Spec(slurm=Slurm(sbatch_args={"container-image": "x"})), "or a container has"),
        (Spec(launch=Launch(python="sh"), setup=["module load x"]), "decide what sh is"),
    ],
)
def test_an_interpreter_that_only_the_nodes_have_is_not_checked(spec, reason):
    with pytest.raises(check.NotChecked, match=reason):
        check.ranks_python(spec)


SCRIPT = "name: x\nlaunch:\n  script: own.py\n"


def test_the_syntax_of_an_own_script_is_checked_and_nothing_is_executed(frozen, tmp_path, capfd):
    own = f"open({str(tmp_path / 'executed')!r}, 'w')\n"
    check.check(*frozen(SCRIPT, own=own))
    assert "checked the syntax" in capfd.readouterr().err
    assert not (tmp_path / "executed").exists()
    with pytest.raises(SpecError) as caught:
        check.check(*frozen(SCRIPT, own="x = 1\ndef f(:\n"))
    text = str(caught.value)
    assert text.startswith("x.yaml:3: launch.script: own.py: ") and "(own.py, line 2)" in text


def test_an_own_module_that_no_rank_would_find_is_refused(frozen, capfd):
    words = r"x.yaml:2: launch.module: .* have no module no_such.train"
    with pytest.raises(SpecError, match=words):
        check.check(*frozen("name: x\nlaunch: {module: no_such.train}\n"))
    check.check(*frozen("name: x\nlaunch: {module: json.tool}\n"))  # an installed one
    assert "checked the syntax" in capfd.readouterr().err


def test_an_interpreter_that_is_not_here_is_not_checked(frozen, capfd):
    check.check(*frozen("name: x\nlaunch: {python: no-such-python}\n"))
    words = capfd.readouterr().err
    assert "not checked: [Errno 2] No such file or directory: " in words
