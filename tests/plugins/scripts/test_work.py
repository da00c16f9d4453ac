"""A user's script: which repository is frozen, and its working directory."""

import os
import subprocess
from pathlib import Path

import pytest

from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.config.loaded import LoadedSpec
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Launch, Spec
from slurm_job_kit.jobs.plugins.scripts import hooks, work
from slurm_job_kit.jobs.plugins.scripts.command import rank_command
from slurm_job_kit.jobs.runs import code_snapshot, frozen_spec
from slurm_job_kit.jobs.runs.freeze import freeze
from tests.core.two_hosts import look

FILES = ("mine/run.py", "mine/words.txt", "top.json", "data/x.txt", "data/raw/big.bin")


@pytest.fixture
def repository(tmp_path, monkeypatch, frozen_code):
    """A repository with code, and data that git ignores; runs lie outside of it."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/.code").symlink_to(frozen_code)
    monkeypatch.setenv("KIT_RUNS", str(tmp_path / "runs"))
    folder = tmp_path / "repository"
    write(folder)
    (folder / ".gitignore").write_text("raw/\n*.png\n")
    subprocess.run(["git", "-C", folder, "init", "-q"], check=True)
    return folder


def write(folder, *names):
    for name in names or FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"# {name}\n")


def frozen(repository, **launch):
    spec = Spec(name="own", launch=Launch(**({"script": "mine/run.py"} | launch)))
    loaded = LoadedSpec(spec, f"name: own\nlaunch: {launch}\n", ())
    with freeze(loaded, repository) as run_dir:
        hooks.before_queue({run_dir: loaded}, False, False)
        return run_dir


def with_inputs(run, *inputs):
    run.spec.write_text(Spec(launch=Launch(script="mine/run.py", inputs=[*inputs])).to_json())
    work.follow_code(run)


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_working_directory_is_a_writable_copy_of_the_frozen_code(repository):
    first, second = frozen(repository), frozen(repository)
    assert first.code.resolve() == second.code.resolve()
    names = [".gitignore", "data/x.txt", "mine/run.py", "mine/words.txt", "top.json"]
    assert files(first.work) == names
    (first.work / "data/x.txt").write_text("changed")
    write(first.work, "data/new.txt")
    for folder in (repository, first.code, second.work):
        assert (folder / "data/x.txt").read_text() == "# data/x.txt\n"
        assert not (folder / "data/new.txt").exists()


def test_a_large_file_is_a_link_that_survives_a_move_of_the_runs(repository, monkeypatch):
    monkeypatch.setattr(work, "MAX_COPIED_BYTES", 12)
    run = frozen(repository)
    moved = RunDir(run.path.parents[1].rename(repository.parent / "moved") / "own" / run.run_id)
    link = moved.work / "data/x.txt"
    assert link.is_symlink() and link.resolve() == (moved.code / "data/x.txt").resolve()
    assert not (moved.work / "top.json").is_symlink()
    link.unlink()
    link.symlink_to("../../../.code/deleted/data/x.txt")
    work.follow_code(moved)
    assert link.resolve() == (moved.code / "data/x.txt").resolve()


@pytest.mark.parametrize("name", ["data/raw", "data/raw/big.bin", "data"])
def test_what_inputs_name_is_a_link_and_not_frozen(repository, name):
    run = frozen(repository, inputs=[name])
    assert (run.work / name).is_symlink()
    assert (run.work / "data/raw/big.bin").resolve() == repository / "data/raw/big.bin"
    assert (run.code / "data/x.txt").exists() == (name != "data")


def test_an_input_that_does_not_exist_is_an_error_and_makes_no_run(repository):
    with pytest.raises(UserError, match=r"(?s)launch.inputs: .*gone does not exist.*hint: "):
        frozen(repository, inputs=["gone"])
    assert not (repository.parent / "runs/own").exists()


def test_an_input_that_a_resume_adds_is_refused_where_the_run_has_files(repository):
    run = frozen(repository)
    with_inputs(run, "data/raw")
    assert (run.work / "data/raw").readlink() == repository / "data/raw"
    with pytest.raises(UserError, match=r"launch.inputs: data: .*/work/data\n  hint: "):
        with_inputs(run, "data")
    assert (run.work / "data/x.txt").is_file()
    (run.work / "data/raw").unlink()
    (run.work / "data/raw").write_text("the script has put a file of its own in place of the link")
    with_inputs(run, "data/raw")
    (repository / "data/raw/empty").mkdir()
    frozen(repository, inputs=["data/raw/empty", "data"])
    assert (repository / "data/raw/empty").is_dir()


def test_a_link_that_leaves_the_repository_leads_to_the_same_place(repository):
    write(repository.parent, "disk/y.txt")
    (repository / "disk").symlink_to("../disk")
    (repository / "mine/top").symlink_to("../top.json")
    run = frozen(repository)
    assert (run.work / "disk").resolve() == repository.parent / "disk"
    assert (run.work / "mine/top").resolve() == run.work / "top.json"
    assert code_snapshot.damage(run.code.resolve()) is None


def test_a_resume_brings_purged_files_back_and_keeps_what_the_script_wrote(repository):
    run = frozen(repository)
    (run.work / "top.json").unlink()
    (run.work / "data/x.txt").write_text("changed")
    work.follow_code(run)
    assert (run.work / "top.json").is_file()
    assert (run.work / "data/x.txt").read_text() == "changed"


@pytest.mark.parametrize(
    "script", ["mine/run.py", "mine/../mine/run.py", "{repository}/mine/run.py"]
)
def test_a_script_of_the_repository_runs_from_the_working_directory(repository, script):
    run = frozen(repository, script=script.format(repository=repository))
    assert rank_command(Spec.read(run.spec).launch, run)[2:] == [str(run.work / "mine/run.py")]


@pytest.mark.parametrize("is_git", [True, False])
def test_of_a_script_elsewhere_its_own_repository_or_folder_is_frozen(repository, capfd, is_git):
    outside = repository.parent / "outside"
    write(outside, "a/train.py", "lib/part.py", "a/.hidden", "a/__pycache__/x.pyc", "a/id_rsa")
    if is_git:
        subprocess.run(["git", "-C", outside, "init", "-q"], check=True)
    run = frozen(repository, script="../outside/a/train.py")
    home, script, others = outside / "a", "train.py", []
    if is_git:
        home, script, others = outside, "a/train.py", ["a/.hidden", "lib/part.py"]
    assert files(run.work) == sorted([script, *others])
    assert read_json(run.provenance)["repository"] == str(home)
    assert Spec.read(run.spec).launch.script == script
    assert "(may be secrets): " in capfd.readouterr().err
    assert frozen_spec.reload(run, ["launch.args=[1]"]).spec.launch.script == script


def test_a_shell_script_is_refused_because_python_runs_it(repository):
    (repository / "mine/train.sh").write_text("python x.py\n")
    with pytest.raises(UserError, match="mine/train.sh is a shell script.*\n  hint: "):
        frozen(repository, script="mine/train.sh")


def test_a_script_that_git_ignores_or_that_does_not_exist_is_an_error(repository):
    write(repository, "raw/train.py")
    with pytest.raises(UserError, match="train.py is not in the frozen code.*\n  hint: git ignor"):
        frozen(repository, script="raw/train.py")
    with pytest.raises(UserError, match='launch.script: "mine/rum.py" does not exist\n  hint: '):
        frozen(repository, script="mine/rum.py")


def interrupt(source, target):
    Path(target).write_text("# mi")
    raise KeyboardInterrupt


def test_other_code_replaces_what_changed_in_it_and_nothing_else(repository, monkeypatch):
    write(repository, "deep/a/b.txt")
    run = frozen(repository)
    was = os.readlink(run.code)
    (run.work / "top.json").write_text("by the script")
    write(run.work, "out/last.pt")
    (run.work / "data/x.txt").write_text("results of the script")
    (repository / "mine/run.py").write_text("new")
    (repository / "data/x.txt").write_text("new")
    (repository / "mine/words.txt").unlink()
    (repository / "deep/a/b.txt").unlink()
    write(repository, "mine/more.py")
    new = frozen(repository)
    run.code.unlink()
    run.code.symlink_to(os.readlink(new.code))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("shutil.copyfile", interrupt)
        work.follow_code(run)
    work.follow_code(run)
    assert (run.work / "mine/run.py").read_text() == "new"
    assert (run.work / "top.json").read_text() == "by the script"
    assert (run.work / "data/x.txt").read_text() == "new"
    assert (run.work / "data/x.txt.before-resume").read_text() == "results of the script"
    assert (run.work / "out/last.pt").exists() and (run.work / "mine/more.py").exists()
    assert not (run.work / "mine/words.txt").exists() and not (run.work / "deep").exists()
    run.code.unlink()
    run.code.symlink_to(was)  # the resume failed after that
    work.follow_code(run)
    assert (run.work / "mine/run.py").read_text() == "# mine/run.py\n"
    assert (run.work / "deep/a/b.txt").exists() and not (run.work / "mine/more.py").exists()


@pytest.mark.plugin("changes")
def test_new_code_has_no_copy_of_what_the_same_resume_names_as_an_input(repository):
    run = frozen(repository, script="mine/run.py")
    from slurm_job_kit.jobs.plugins.changes import code_changes

    spec = frozen_spec.reload(run, ["launch.inputs=[data]"]).spec
    new = code_changes.prepare(run, spec, code_changes.repository_of(run))
    assert not (new.code / "data").exists() and (new.code / "mine/run.py").is_file()


def test_all_new_names_in_a_folder_are_seen_once_the_server_is_asked(hosts):
    (hosts.here / "old").mkdir()
    look(hosts.there, "x", "old/y", "folder")
    (hosts.here / "x").write_text("1")
    (hosts.here / "old/y").write_text("2")
    (hosts.here / "folder").mkdir()
    (hosts.here / "folder/z").write_text("3")
    assert not (hosts.there / "x").exists()
    work.ask_for_all(hosts.there)
    found = [(hosts.there / name).exists() for name in ("x", "old/y", "folder/z")]
    assert found == [True] * 3


def test_a_submit_names_what_a_script_reads_that_changes_with_the_job(repository, capfd):
    (repository / "mine/run.py").write_text("import os\nprint(1)\nx = os.getenv('SLURM_JOB_ID')\n")
    frozen(repository)
    assert "warning: mine/run.py:3 reads SLURM_JOB_ID: it changes" in capfd.readouterr().err
