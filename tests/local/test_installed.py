"""The kit that pip installs from a wheel: the command `kit`, in a repository of the user's own."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Spec
from tests.core.run_files import answered
from tests.installed import install, make_repository
from tests.local.local_kit import FOREIGN


@pytest.fixture(scope="module")
def kit_command(tmp_path_factory):
    return install(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def repository(tmp_path):
    return make_repository(tmp_path / "mine")


def finished(command, folder, *words, **environ):
    env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    argv = [command, *map(str, words)]
    return subprocess.run(
        argv, cwd=folder, env=env | environ, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def kit(kit_command):
    """`kit(folder, *words)`: the finished command; it must succeed."""

    def run(folder, *words):
        done = finished(kit_command, folder, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="module")
def alone_command(tmp_path_factory):
    return install(tmp_path_factory.mktemp("alone"), is_alone=True)


@pytest.fixture
def alone(alone_command, repository):
    """`alone(*words, path=folder)`: the finished command of a kit that has nothing but its needs.

    path: the first folder of PATH, whose python3 may have torch.
    """
    return lambda *words, path=repository: finished(
        alone_command, repository, *words, PATH=f"{path}:/usr/bin:/bin"
    )


def newest(repository, name):
    return RunDir((repository / "runs" / name / "latest").resolve())


def test_the_wheel_has_no_package_but_slurm_job_kit(alone_command):
    [wheel] = (alone_command.parents[2] / "wheel").iterdir()
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert [top for top in tops if not top.endswith(".dist-info")] == ["slurm_job_kit"]


def test_the_kit_alone_lacks_nothing_that_it_needs(alone_command):
    pip = [sys.executable, "-m", "pip", f"--python={alone_command.with_name('python')}", "check"]
    done = subprocess.run(pip, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    [package] = alone_command.parents[1].glob("lib/*/site-packages/slurm_job_kit")
    assert (package / "py.typed").is_file()


def test_a_command_names_the_extra_that_it_needs(alone, repository):
    done = alone("submit", "specs/mine.yaml", "train.dataset=digits", "--cluster", "local")
    error, hint = done.stderr.splitlines()
    names = "torch, numpy, safetensors, scikit-learn"
    assert f"has no {names} (extra train, examples of slurm-job-kit)" in error
    assert "set launch.python" in hint and hint.endswith(f"install {names.replace(',', '')}")
    assert done.returncode == 2 and not list(repository.glob("runs/mine"))


def test_the_python_on_path_trains_where_that_of_the_kit_has_no_torch(alone, repository, tmp_path):
    python = Path(sys.executable).with_name("python3")
    assert alone("freeze", "specs/mine.yaml", path=python.parent).returncode == 0
    assert Spec.read(newest(repository, "mine").spec).launch.python == str(python)
    given = "launch.python=/elsewhere/python"
    assert alone("freeze", "specs/mine.yaml", given, path=python.parent).returncode == 0
    assert Spec.read(newest(repository, "mine").spec).launch.python == "/elsewhere/python"
    (tmp_path / "python3").symlink_to("/bin/false")  # a Python without torch
    done = alone("freeze", "specs/mine.yaml", path=tmp_path)
    assert done.returncode == 2 and "extra train" in done.stderr


@pytest.mark.slow
@pytest.mark.plugin("changes", "export", "look")
def test_the_kit_alone_runs_looks_resumes_and_exports(alone, repository):
    python = Path(sys.executable).with_name("python3")
    words = ("specs/mine.yaml", "slurm.nodes=1", "--cluster", "local")
    assert alone("submit", *words, path=python.parent).returncode == 0
    run = newest(repository, "mine")
    for command in ("status", "why", "logs"):
        assert alone(command, "mine").returncode == 0
    # Nothing but the run names its Python from here on.
    done = alone("resume", "mine", "train.epochs=4", "--yes", "--cluster", "local")
    assert done.returncode == 0, done.stderr
    assert read_json(run.result)["global_step"] == 4 * 64 // 8
    done = alone("export", "mine", "--json")
    assert answered(done.stdout)["path"] == f"{run.path}/weights.safetensors", done.stderr


def test_an_editable_kit_shows_no_other_package_and_is_frozen_beside_the_code(tmp_path):
    command = install(tmp_path / "installed", is_editable=True)
    names = "['slurm_job_kit', 'jobs', 'trainer', 'tests']"
    code = f"from importlib.util import find_spec as f; print([bool(f(x)) for x in {names}])"
    process_output = subprocess.check_output(
        [command.with_name("python"), "-c", code], cwd="/", text=True
    )
    assert process_output.split() == ["[True,", "False,", "False,", "False]"]
    repository = make_repository(tmp_path / "mine")
    assert finished(command, repository, "freeze", "specs/mine.yaml").returncode == 0
    run = newest(repository, "mine")
    assert (run.code / "jobs/nets.py").is_file() and not (run.code / "slurm_job_kit").exists()
    jobs = run.kit / "slurm_job_kit/jobs"
    assert (jobs / "contract/spec.py").is_file() and not jobs.is_symlink()


@pytest.mark.slow
@pytest.mark.plugin("changes", "look")
def test_the_users_repository_is_frozen_and_the_kit_beside_it(kit, repository, tmp_path):
    two_ranks = ("slurm.nodes=1", "launch.nproc_per_node=2")
    text = kit(repository, "submit", "specs/mine.yaml", *two_ranks, "--cluster", "local")
    run = newest(repository, "mine")
    assert read_json(run.result)["status"] == "completed"
    assert f"next: kit report {run.run_id}" in text
    assert (run.code / "jobs/nets.py").is_file() and not (run.code / "slurm_job_kit").exists()
    assert (run.kit / "slurm_job_kit/jobs/contract/spec.py").is_file()
    assert not (run.kit / "jobs").exists()
    # The ranks' interpreter has the kit installed, too.
    assert f"kit {run.kit}/" in run.rank_log(0).read_text()
    assert "mine" in kit(repository / "specs", "status")  # from any folder of the repository
    # A resume takes the mended code of the repository that was submitted, from any folder.
    nets, before = repository / "jobs/nets.py", run.code.resolve()
    nets.write_text(nets.read_text().replace("nn.Tanh()", "nn.ReLU()"))
    words = ("train.epochs=4", "--code", "--yes", "--cluster", "local")
    text = kit(tmp_path, "resume", run.path, *words)
    assert f"git diff --no-index {before} {run.code.resolve()}" in text
    assert "ReLU" in (run.code / "jobs/nets.py").read_text()
    assert read_json(run.result)["global_step"] == 4 * 64 // 2 // 8


@pytest.mark.slow
@pytest.mark.plugin("init")
def test_init_makes_a_repository_ready_and_keeps_what_is_there(kit, kit_command, tmp_path):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("data/")
    (tmp_path / "sub").mkdir()
    kit(tmp_path / "sub", "init")
    assert (tmp_path / ".gitignore").read_text() == "data/\n/runs/\nslurm-*.out\n__pycache__/\n"
    (tmp_path / "kit.mk").write_text("# mine\n")
    text = kit(tmp_path, "init")
    assert "kit.mk exists and is kept" in text and (tmp_path / "kit.mk").read_text() == "# mine\n"
    assert (tmp_path / ".gitignore").read_text().count("/runs/") == 1
    assert "kit_stop.py" in kit(tmp_path / "sub", "init", "--script")
    assert (tmp_path / "sub/kit_stop.py").is_file()
    (tmp_path / "kit.mk").unlink()
    kit(tmp_path, "init")
    words = ("CONFIG=configs/first.yaml", "SET=train.epochs=1", "FLAGS=--cluster local")
    path = f"{kit_command.parent}:{os.environ['PATH']}"
    make = ("make", "-f", "kit.mk")
    subprocess.run([*make, "submit", *words], cwd=tmp_path, env={"PATH": path}, check=True)
    assert b"make submit" in subprocess.check_output(make, cwd=tmp_path)
    assert read_json(newest(tmp_path, "first").result)["status"] == "completed"
