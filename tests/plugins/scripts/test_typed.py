"""The command behind `--` of submit becomes a spec; what starts ranks itself is refused."""

import subprocess
import sys

import pytest

from slurm_job_kit.jobs import hooks
from slurm_job_kit.jobs.base import installation
from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.commands import arguments
from slurm_job_kit.jobs.commands.catalogue import parse
from slurm_job_kit.jobs.config.load import load


@pytest.fixture(autouse=True)
def repository(tmp_path, monkeypatch):
    """A repository of the user, in which the command kit is typed."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/tune.py").write_text("from kit_stop import Stop")
    (tmp_path / "sub/fit.py").write_text("import slurm_job_kit.trainer.plugins.integrations.fabric")
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(installation, "IS_BY_MAKE", False)
    return tmp_path


def loaded(*words):
    return load(*arguments.source_of(parse(["submit", *words])))


def test_the_text_of_the_spec_is_a_file_for_the_next_day(repository):
    words = ["--lr", "1e-3", "no", "4:00", "0o7", "a b", "it's", "$x", "--", "-c", "ü"]
    changes = ["slurm.nodes=2", 'slurm.time="90"', "launch.env.A=1e3", "launch.env.B=''"]
    typed = loaded(*changes, "--name", "tür", "--", sys.executable, "train.py", *words)
    assert typed.spec.name == "tür"
    assert typed.spec.launch.script == "train.py"
    assert list(typed.spec.launch.args) == words
    assert typed.spec.launch.stop_signal == "none"
    (repository / "next.yaml").write_text(typed.text)
    assert load(repository / "next.yaml").spec == typed.spec


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python3 sub/tune.py", {"name": "tune", "script": "sub/tune.py", "stop_signal": "TERM"}),
        ("python sub/fit.py", {"name": "fit", "stop_signal": "TERM"}),
        ("python -m pkg.train.__main__ a", {"name": "pkg-train", "args": ["a"]}),
        ("python -m sub.tune", {"module": "sub.tune", "stop_signal": "TERM"}),
    ],
)
def test_a_script_or_a_module(line, expected):
    spec = loaded("--", *line.split()).spec
    found = {"name": spec.name, **vars(spec.launch)}
    assert {name: found[name] for name in expected} == expected


def test_an_interpreter_that_is_named_runs_it(repository):
    (own := repository / "with space/python3.11").parent.mkdir()
    own.symlink_to(sys.executable)
    assert loaded("--", str(own), "train.py").spec.launch.python == str(own)
    assert loaded("--", "python", "train.py").spec.launch.python is None


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("--", "kit submit -- python train.py"),
        ("-- torchrun --nnodes 2 train.py --lr 1", "kit submit -- python train.py --lr 1"),
        ("-- accelerate launch -m pkg.train a", "kit submit -- python -m pkg.train a"),
        ("-- python -m torch.distributed.run train.py", "kit submit -- python train.py"),
        ("-- bash run.sh", "name the Python file that it starts"),
        ("-- A=1 python train.py", "launch.env.A=1 before --"),
        ("-- slurm.nodes=2 python train.py", "write slurm.nodes=2 before --"),
        ("-- accelerate launch --config a.py train.py", "kit submit -- python train.py"),
        ("-- python -m", "as in kit submit -- python train.py"),
        ("launch.script=b.py -- python train.py", "leave it out"),
        ("launch.args=[a] -- python train.py b", "leave it out"),
        ("-- python9 train.py", "python9: command not found"),
        ("x.yaml -- python train.py", "only one of them"),
        ("", "a spec or a command"),
        ("python train.py --lr 1", "-- python train.py --lr 1"),
        ("--cluster local python train.py", "-- python train.py"),
    ],
)
def test_what_is_no_such_command_is_refused_with_the_line_to_type(line, hint):
    with pytest.raises(UserError) as refused:
        loaded(*line.split())
    assert hint in str(refused.value)


def test_a_script_is_named_from_the_top_of_its_repository(repository, monkeypatch):
    monkeypatch.chdir("sub")
    with pytest.raises(UserError, match="hint: cd .*python sub/tune.py --lr 1"):
        loaded("--", "python", "tune.py", "--lr", "1")
    with pytest.raises(UserError, match="hint: cd .*python -m train"):
        loaded("--", "python", "-m", "train")
    monkeypatch.chdir(repository)
    with pytest.raises(UserError, match="sub/tun.py.* does not exist\n  hint: did you mean tune"):
        hooks.prepare_code(loaded("--", "python", "sub/tun.py").spec, repository)
