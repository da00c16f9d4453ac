"""A user's script: its frozen code outside of the repository, its working directory, its inputs."""

import json
import os
import shutil
import socket
import subprocess
import venv
from pathlib import Path

import pytest

from slurm_job_kit.jobs.config.load import LoadedSpec
from slurm_job_kit.jobs.errors import UserError
from slurm_job_kit.jobs.node import torchrun
from slurm_job_kit.jobs.node.torchrun import rank_command
from slurm_job_kit.jobs.rundir import RunDir, read_json
from slurm_job_kit.jobs.runs import code_snapshot, own_script, scratch_purge, spec_changes
from slurm_job_kit.jobs.runs.freeze import FreezeError, freeze
from slurm_job_kit.jobs.spec import Launch, Spec
from tests.unit.run_files import unlock

pytestmark = pytest.mark.long  # each test freezes a repository and starts processes


@pytest.fixture
def repository(tmp_path, monkeypatch, frozen_code):
    """A repository with code, tracked, untracked and ignored files; runs lie outside of it."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/.code").symlink_to(frozen_code)
    monkeypatch.setenv("KIT_RUNS", str(tmp_path / "runs"))
    folder = tmp_path / "repository"
    for name in (
        *("mine/run.py", "mine/helper.py", "mine/words.txt", "vocab.json", "results.csv"),
        *("data/x.txt", "data/.gitkeep", "data/raw/big.bin", "images/.gitkeep", "images/1.png"),
    ):
        write(folder / name, f"# {name}\n")
    write(folder / ".gitignore", "raw/\n*.png\nsecret.py\n")
    git = ["git", "-C", folder]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "vocab.json", "data/.gitkeep", "images/.gitkeep"], check=True)
    return folder


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def frozen(repository, **launch):
    launch = {"script": "mine/run.py"} | launch
    spec = Spec(name="own", launch=Launch(**launch))
    with freeze(LoadedSpec(spec, f"name: own\nlaunch: {launch}\n", ()), repository) as run_dir:
        return run_dir


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_working_directory_has_the_frozen_inputs_but_no_code_and_no_stray_file(repository):
    run = frozen(repository)
    assert files(run.work) == ["data/x.txt", "mine/words.txt", "vocab.json"]


def test_what_a_script_writes_changes_neither_the_frozen_code_nor_the_repository(repository):
    first, second = frozen(repository), frozen(repository)
    assert first.code.resolve() == second.code.resolve()
    write(first.work / "data/x.txt", "changed")
    write(first.work / "data/new.txt", "new")
    for folder in (repository, first.code, second.work):
        assert (folder / "data/x.txt").read_text() == "# data/x.txt\n"
        assert not (folder / "data/new.txt").exists()


def test_a_large_input_is_a_link_that_survives_a_move_of_the_runs(repository, monkeypatch):
    monkeypatch.setattr(own_script, "MAX_COPIED_BYTES", 3)
    run = frozen(repository)
    moved = RunDir(run.path.parents[1].rename(repository.parent / "moved") / "own" / run.run_id)
    assert (moved.work / "data/x.txt").is_symlink()
    assert (moved.work / "data/x.txt").resolve() == (moved.code / "data/x.txt").resolve()
    assert (moved.work / "data/x.txt").read_text() == "# data/x.txt\n"


@pytest.mark.parametrize(
    ("launch", "name", "is_link"),
    [
        ({"args": ["results.csv"]}, "results.csv", False),  # frozen, but git does not track it
        ({"args": ["mine/helper.py"]}, "mine/helper.py", False),
        ({"inputs": ["data/raw"]}, "data/raw/big.bin", True),
        ({"inputs": ["images"]}, "images/1.png", True),
    ],
)
def test_what_the_spec_names_is_found_by_its_relative_path(
    repository, capfd, launch, name, is_link
):
    run = frozen(repository, **launch)
    assert (run.work / name).read_text() == f"# {name}\n"
    assert ((run.work / name).resolve() == repository / name) == is_link
    lines = capfd.readouterr().err.splitlines()
    key = f"launch.{next(iter(launch))}"
    assert len(lines) == is_link
    assert all(line.startswith(f"{key}: ") and str(repository) in line for line in lines)


@pytest.mark.parametrize(
    "word", ["data/raw", "--data=data/raw", "output", "--out=output/", "out_dir=output"]
)
def test_what_git_ignores_is_no_input_because_an_argument_names_it(repository, capfd, word):
    write(repository / "output/last.pt", "of an earlier run")
    write(repository / ".gitignore", "raw/\noutput/\n")
    run = frozen(repository, args=[word])
    folder = "data/raw" if "data" in word else "output"
    assert not (run.work / folder).exists()
    line = next(each for each in capfd.readouterr().err.splitlines() if "launch.args: " in each)
    assert f"launch.inputs=[{folder}" in line
    assert (frozen(repository, args=[word], inputs=[folder]).work / folder).is_symlink()


LEFT = (
    *("checkpoints/x.pt", "mine/snapshot.pth.tar", "exp1/model.safetensors", "exp1/state.json"),
    *("outputs/2026/last.json", "mine/a/b/step_9/0.distcp", "mine/train.log", "logs/x.txt"),
    *("mine/tb/events.out.tfevents.1.n.2", "mine/arrays.npz", "mine/state"),
)


@pytest.mark.parametrize("is_git", [True, False])
def test_what_an_earlier_run_left_is_neither_frozen_nor_an_input(repository, capfd, is_git):
    for name in LEFT:
        write(repository / name, "x\0y" if name == "mine/state" else "x")
    if not is_git:
        shutil.rmtree(repository / ".git")
    write(repository / "experiments/new.yaml", "lr: 1")
    run = frozen(repository)
    assert "experiments/new.yaml" in files(run.code), "a new spec is no left-over"
    assert not {*LEFT} & {*files(run.code)}
    assert not {*LEFT} & {*files(run.work)}
    assert {"mine/run.py", "mine/helper.py", "data/x.txt"} <= {*files(run.code)}
    line = next(each for each in capfd.readouterr().err.splitlines() if "is no input" in each)
    assert f"{len(LEFT) + (not is_git)} files" in line or f"{len(LEFT)} files" in line
    assert "checkpoints" in line and "launch.inputs=[" in line
    run = frozen(repository, inputs=["checkpoints"])  # a user wants it
    assert (run.work / "checkpoints/x.pt").read_text() == "x"


def test_a_checkpoint_that_git_tracks_is_an_input(repository):
    write(repository / "weights/base.pt", "x")
    subprocess.run(["git", "-C", repository, "add", "weights"], check=True)
    assert (frozen(repository).work / "weights/base.pt").read_text() == "x"


def test_the_trainer_may_read_what_git_does_not_track(repository):
    write(repository / "mine/arrays.npz", "x")
    with freeze(LoadedSpec(Spec(name="own"), "name: own\n", ()), repository) as run:
        assert (run.code / "mine/arrays.npz").exists()


def test_a_folder_with_nothing_but_a_hidden_frozen_file_is_one_link(repository):
    assert (frozen(repository, inputs=["images"]).work / "images").is_symlink()


@pytest.mark.parametrize("word", ["./results.csv", "/etc/hosts", ".", "--x=", "nowhere.csv", "-1"])
def test_other_words_of_the_arguments_put_nothing_there(repository, capfd, word):
    assert files(frozen(repository, args=[word]).work) == files(frozen(repository).work)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("args", "outputs", "is_named"),
    [
        (["--out={elsewhere}/new"], [], True),
        (["--out", "{elsewhere}"], [], True),
        (["trainer.default_root_dir={elsewhere}"], [], True),
        (["--out={elsewhere}/new"], ["{elsewhere}"], False),
        (["--data={elsewhere}"], [], False),
        (["{elsewhere}/x.csv"], [], False),  # a file that exists: it is read
        (["--port=/dev/null"], [], False),
    ],
)
def test_an_argument_that_may_lead_checkpoints_elsewhere_is_named(
    repository, capfd, args, outputs, is_named
):
    elsewhere = repository.parent / "elsewhere"
    write(elsewhere / "x.csv", "x")
    args, outputs = (
        [each.format(elsewhere=elsewhere) for each in words] for words in (args, outputs)
    )
    frozen(repository, args=args, outputs=outputs)
    assert ("launch.outputs=[" in capfd.readouterr().err) == is_named


def test_a_path_that_leads_out_of_the_repository_is_named(repository, capfd):
    write(repository.parent / "beside.csv", "x")
    frozen(repository, args=["../beside.csv"])
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("launch.args: ../beside.csv")
    assert line.endswith(f"if you mean {repository.parent / 'beside.csv'}, write that")


def test_an_input_that_does_not_exist_is_an_error_and_makes_no_run(repository):
    with pytest.raises(UserError, match=r"(?s)launch.inputs: .*gone does not exist.*hint: "):
        frozen(repository, inputs=["gone"])
    assert not (repository.parent / "runs/own").exists()


def test_a_link_to_a_folder_elsewhere_leads_there(repository):
    write(repository.parent / "disk/y.txt", "y")
    (repository / "disk").symlink_to("../disk")
    assert (frozen(repository).work / "disk/y.txt").read_text() == "y"


def test_a_resume_brings_purged_inputs_back_and_keeps_what_the_script_wrote(repository):
    run = frozen(repository)
    (run.work / "vocab.json").unlink()
    write(run.work / "data/x.txt", "changed")
    spec_changes.mend_work(run)
    assert (run.work / "vocab.json").is_file()
    assert (run.work / "data/x.txt").read_text() == "changed"


@pytest.mark.parametrize(
    "script", ["mine/run.py", "mine/../mine/run.py", "{repository}/mine/run.py"]
)
def test_a_script_of_the_repository_runs_from_the_frozen_code(repository, script):
    run = frozen(repository, script=script.format(repository=repository))
    spec = Spec.read(run.spec)
    assert spec.launch.script == "mine/run.py"
    assert rank_command(spec, run)[2:] == [str(run.code / "mine/run.py")]
    assert not run.script_code.exists()


def test_a_pipeline_that_hides_how_the_training_ended_is_named(repository, capfd):
    write(repository / "mine/train.sh", "python train.py | tee log\n")
    write(repository / "mine/run.py", "import os; os.system('bash mine/train.sh')")
    frozen(repository)
    assert "mine/train.sh:1: this pipeline" in capfd.readouterr().err
    script = repository.parent / "outside/run.py"
    write(script, "import os\nos.system('python train.py | tee log')\n")
    frozen(repository, script=str(script))
    assert "run.py:2: this pipeline" in capfd.readouterr().err


def test_the_folder_of_a_script_outside_is_frozen_too(repository, capfd, monkeypatch):
    outside = repository.parent / "outside"
    for name in ("train.py", "lib/part.py", ".netrc", ".ssh/key"):
        write(outside / name, "# first\n")
    monkeypatch.chdir(outside)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as unreadable:
        unreadable.bind("socket")
    run = frozen(repository, script=str(outside / "train.py"))
    (outside / "train.py").write_text("# edited\n")
    command = rank_command(Spec.read(run.spec), run)
    assert Path(command[2]) == run.script_code / "train.py"
    (snapshot,) = read_json(run.provenance)["snapshots"]
    assert snapshot["script_code"] == run.script_code.resolve().name
    assert Path(command[2]).read_text() == "# first\n"
    assert files(run.script_code) == [".frozen-files", "lib/part.py", "train.py"]
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"launch.script: its folder {outside} is frozen, too: 2 files, none ")
    scratch_purge.check_code(run)
    unlock(run.script_code.resolve())
    (run.script_code / "lib/part.py").unlink()
    with pytest.raises(UserError, match="has lost or changed files"):
        scratch_purge.check_code(run)


def test_a_script_outside_finds_the_inputs_of_its_own_folder(repository, capfd):
    outside = repository.parent / "outside"
    for name in ("train.py", "words.txt", "data/x.txt", "data/raw/big.bin"):
        write(outside / name, f"outside {name}")
    run = frozen(repository, script=str(outside / "train.py"))
    assert files(run.work) == ["data/raw/big.bin", "data/x.txt", "words.txt"]
    assert (run.work / "data/x.txt").read_text() == "outside data/x.txt"
    write(outside / ".gitignore", "raw/")
    subprocess.run(["git", "-C", outside, "init", "-q"], check=True)
    run = frozen(repository, script=str(outside / "train.py"), inputs=["data/raw"])
    assert (run.work / "data/raw/big.bin").resolve() == outside / "data/raw/big.bin"
    assert f"has a link to {outside / 'data/raw'}" in capfd.readouterr().err
    with pytest.raises(UserError, match=f"hint: give a path relative to {outside}"):
        frozen(repository, script=str(outside / "train.py"), inputs=["vocab.json"])


@pytest.mark.parametrize("limit", ["MAX_OUTSIDE_FILES", "MAX_OUTSIDE_MIB"])
def test_of_a_large_folder_the_script_alone_is_frozen(repository, capfd, monkeypatch, limit):
    monkeypatch.setattr(own_script, limit, 0)
    outside = repository.parent / "outside"
    for name in ("train.py", "lib/part.py"):
        write(outside / name, "x")
    run = frozen(repository, script="../outside/train.py")
    assert files(run.script_code) == [".frozen-files", "train.py"]
    assert f"{outside / 'train.py'} alone is frozen, not its folder" in capfd.readouterr().err


def test_a_link_in_the_repository_to_a_script_elsewhere_is_no_frozen_code(repository):
    write(repository.parent / "outside/train.py", "x")
    (repository / "linked.py").symlink_to("../outside/train.py")
    run = frozen(repository, script="linked.py")
    assert (run.script_code / "train.py").is_file()


@pytest.mark.parametrize(
    ("name", "text", "is_refused"),
    [
        ("train.sh", "python train.py\n", True),
        ("train", "#!/usr/bin/env bash\npython train.py\n", True),
        ("train", "#!/usr/bin/env python3\n", False),
        ("train", "x = 1\n", False),
    ],
)
def test_a_shell_script_is_refused_because_python_runs_it(repository, name, text, is_refused):
    write(repository / "mine" / name, text)
    if not is_refused:
        assert frozen(repository, script=f"mine/{name}").work.is_dir()
        return
    with pytest.raises(UserError, match=f"mine/{name} is a shell script.*\n  hint: "):
        frozen(repository, script=f"mine/{name}")


def test_a_script_that_git_ignores_is_an_error(repository):
    write(repository / "secret.py", "x")
    with pytest.raises(UserError, match="secret.py is not in the frozen code.*\n  hint: git ignor"):
        frozen(repository, script="secret.py")


def test_a_script_that_does_not_exist_is_an_error(repository):
    with pytest.raises(FreezeError, match="launch.script: mine/rum.py does not exist\n  hint: "):
        frozen(repository, script="mine/rum.py")


@pytest.mark.parametrize(("module", "is_frozen"), [("mine.run", True), ("elsewhere.train", False)])
def test_a_module_whose_code_is_not_frozen_is_named(repository, capfd, module, is_frozen):
    run = frozen(repository, script=None, module=module)
    assert (f"launch.module: {module} is not in" in capfd.readouterr().err) == (not is_frozen)
    assert run.work.is_dir()


@pytest.fixture
def environment(tmp_path):
    """Makes an interpreter, and files in its site-packages; a text without an end is a link."""
    folder = tmp_path / "env"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")

    def add(files):
        for name, text in files.items():
            (site / name).parent.mkdir(exist_ok=True)
            if text.endswith("\n"):
                (site / name).write_text(text)
            else:
                (site / name).symlink_to(text)
        return str(folder / "bin/python")

    return add


FINDER = """
import importlib.util, os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            file = {top!r} + "/" + name + "/__init__.py"
            folders = [os.path.dirname(file)]
            return importlib.util.spec_from_file_location(
                name, file, submodule_search_locations=folders)
"""


def editable(kind, top, name):
    """The files by which tools make `top/name` importable, in their way."""
    project = top.parent if top.name == "src" else top
    about = {"url": project.as_uri(), "dir_info": {"editable": True}}
    known = {
        f"{name}-1.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        f"{name}-1.dist-info/direct_url.json": json.dumps(about) + "\n",
    }
    finder = FINDER.format(name=name, top=str(top))
    hook = {f"_{name}.pth": f"import _{name}_finder\n"}
    strict = top / "build/links"
    if kind == "strict":
        strict.mkdir(parents=True)
        shutil.copytree(top / name, strict / name, copy_function=os.symlink)
    return {
        # pip with setuptools, hatchling, pdm, poetry, flit, uv; also conda develop
        "pth": known | {f"__editable__.{name}.pth": f"{top}\n"},
        # setuptools and editables: behind Python's own search
        "finder": known
        | hook
        | {f"_{name}_finder.py": f"{finder}\nsys.meta_path.append(Finder())\n"},
        "easy-install": {"easy-install.pth": f"import sys\n# x\n{top}\n"},
        "link": known | {name: f"{top}/{name}"},  # flit install -s
        "strict": known | {f"__editable__.{name}.pth": f"{strict}\n"},
        # meson-python and scikit-build-core: before Python's own search
        "hook": known
        | hook
        | {f"_{name}_finder.py": f"{finder}\nsys.meta_path.insert(0, Finder())\n"},
    }[kind]


KINDS = ("pth", "finder", "easy-install", "link", "strict")


def test_a_package_that_imports_its_own_modules_by_relative_names_is_read(repository, environment):
    write(repository / "mypkg/__init__.py", "from .model import Net\nfrom . import data\n")
    write(repository / "mypkg/model.py", "from .data import x\nNet = 1\n")
    write(repository / "mypkg/data.py", "x = 1\n")
    write(repository / "train.py", "from mypkg import Net\n")
    python = environment({"easy-install.pth": f"{repository}\n"})
    assert frozen(repository, script="train.py", python=python).work.is_dir()


@pytest.mark.parametrize(
    ("kind", "launch"),
    [*((kind, {}) for kind in KINDS), ("pth", {"script": None, "module": "mylib.train"})],
)
def test_an_editable_package_of_the_repository_is_imported_frozen(
    repository, environment, capfd, kind, launch
):
    write(repository / "src/mylib/__init__.py", "")
    write(repository / "src/mylib/train.py", "")
    write(repository / "mine/run.py", "import mylib.train")
    python = environment(editable(kind, repository / "src", "mylib"))
    run = frozen(repository, python=python, **launch)
    assert capfd.readouterr().err == ""  # the module is not called unfrozen either
    path = torchrun.search_path("/site/lib", run)
    assert path == f"/site/lib:{run.code}/src"
    command = [python, "-c", "import mylib.train; print(mylib.train.__file__)"]
    env = {**os.environ, "PYTHONPATH": path}
    process_output = subprocess.run(command, env=env, text=True, capture_output=True, check=True)
    assert process_output.stdout.strip() == f"{run.code}/src/mylib/train.py"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((kind, "import other.nets") for kind in (*KINDS, "hook", "PYTHONPATH")),
        ("pth", "def f():\n    from other import nets"),
        ("pth", "import helper"),
        ("pth", "from pkg.deep import x"),
        ("pth", "import pkg.deep"),
    ],
)
def test_a_package_that_people_edit_elsewhere_is_refused_with_the_way_out(
    repository, environment, monkeypatch, kind, text
):
    elsewhere = repository.parent / "elsewhere"
    write(elsewhere / "other/__init__.py", "")
    write(elsewhere / ".git/HEAD", "")
    write(repository / "mine/helper.py", "import other")
    write(repository / "mine/pkg/__init__.py", "")
    write(repository / "mine/pkg/deep.py", "from . import near\nx = 1\n")
    write(repository / "mine/pkg/near.py", "import other")
    write(repository / "mine/run.py", text)
    if kind == "PYTHONPATH":
        monkeypatch.setenv("PYTHONPATH", str(elsewhere))
        python = environment({})
    else:
        python = environment(editable(kind, elsewhere, "other"))
    with pytest.raises(UserError, match=r"(?s)launch.script: .*imports other from .*\n  hint: "):
        frozen(repository, python=python)
    assert not list((repository.parent / "runs/own").glob("2*"))


@pytest.mark.parametrize("way", ["PYTHONPATH", "sys.path"])
def test_a_clone_that_the_user_cannot_write_is_named_and_not_refused(
    repository, environment, monkeypatch, capfd, way
):
    """It may be one of the site, or a colleague's, who edits it."""
    clone = repository.parent / "apps"
    write(clone / "other/__init__.py", "")
    write(clone / ".git/HEAD", "")
    append = f"import sys; sys.path.append('{clone}')\n" if way == "sys.path" else ""
    write(repository / "mine/run.py", f"{append}import other")
    if way == "PYTHONPATH":
        monkeypatch.setenv("PYTHONPATH", str(clone))
    python, access, me = environment({}), os.access, os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)  # root may write everywhere
    monkeypatch.setattr(
        os,
        "access",
        lambda path, mode: clone not in (Path(path), *Path(path).parents) and access(path, mode),
    )
    assert frozen(repository, python=python).work.is_dir()
    (line,) = [line for line in capfd.readouterr().err.splitlines() if str(clone) in line]
    assert "not frozen" in line
    monkeypatch.setattr(os, "access", access)
    with pytest.raises(UserError, match="is not frozen"):
        frozen(repository, python=python)


@pytest.mark.parametrize("kind", ["own", "pip --target", "site"])
def test_a_folder_of_ones_own_on_the_search_path_is_named_if_pip_did_not_fill_it(
    repository, environment, monkeypatch, capfd, kind
):
    folder = repository.parent / "lib"
    write(folder / "other/__init__.py", "")
    write(repository / "mine/run.py", "import other.nets")
    if kind == "pip --target":
        write(folder / "other-1.0.dist-info/METADATA", "")
    if kind == "site":
        me = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: me + 1)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    frozen(repository, python=environment({}))
    assert (f"{folder}/other/__init__.py" in capfd.readouterr().err) == (kind == "own")


def test_an_editable_package_of_the_repository_that_comes_before_its_copy_is_refused(
    repository, environment
):
    """The import hooks of meson-python and scikit-build-core come before the search path."""
    write(repository / "src/mylib/__init__.py", "")
    python = environment(editable("hook", repository / "src", "mylib"))
    with pytest.raises(UserError, match=rf"(?s)imports mylib from {repository}/src/.*\n  hint: "):
        frozen(repository, python=python)


def test_an_editable_package_whose_copy_lacks_a_module_that_git_ignores_is_refused(
    repository, environment
):
    for name in ("__init__", "secret"):
        write(repository / f"src/mylib/{name}.py", "")
    python = environment(editable("pth", repository / "src", "mylib"))
    write(repository / "mine/run.py", "import mylib")
    with pytest.raises(UserError, match=r"(?s)mylib/secret.py is not frozen.*\n  hint: git add -f"):
        frozen(repository, python=python)


def test_a_part_of_a_namespace_package_that_people_edit_is_refused(repository, environment):
    elsewhere = repository.parent / "elsewhere"
    write(elsewhere / "space/other/__init__.py", "")
    python = environment(editable("pth", elsewhere, "space") | {"space/x.py": "x = 1\n"})
    write(repository / "mine/run.py", "import space.x")
    assert frozen(repository, python=python).work.is_dir()
    write(repository / "mine/run.py", "from space import other")
    with pytest.raises(UserError, match=rf"imports space from {elsewhere}/space/other"):
        frozen(repository, python=python)


def test_an_editable_package_that_the_script_does_not_import_is_named(
    repository, environment, capfd
):
    """The script may import it by a name that it makes at run time."""
    elsewhere = repository.parent / "elsewhere"
    write(elsewhere / "other/__init__.py", "")
    write(repository / "tests/test_x.py", "import other")
    write(repository / "mine/other2.py", "")
    write(repository / "mine/run.py", "import os, other2, json.decoder")
    python = environment(editable("pth", elsewhere, "other"))
    assert frozen(repository, python=python).work.is_dir()
    assert f"other ({elsewhere})" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("sys.path.insert(0, '{0}')", True),
        ("sys.path += ['{0}']", True),
        ("site.addsitedir('{0}')", True),
        ("sys.path.append(os.path.dirname(__file__) + '/lib')", False),
        ("sys.path.append('{0}/missing')", False),
        ("folder = '{0}'", False),
    ],
)
def test_a_script_that_searches_a_live_folder_is_refused(repository, line, is_refused):
    write(repository.parent / "lib/other.py", "")
    text = line.format(repository.parent / "lib")
    write(repository / "mine/run.py", f"import os, site, sys\n{text}\n")
    if not is_refused:
        assert frozen(repository).work.is_dir()
        return
    with pytest.raises(UserError, match=r"(?s)run.py:2: .*/lib on sys.path is not frozen.*hint: "):
        frozen(repository)


def test_a_resume_takes_the_frozen_form_of_the_path_for_no_change(repository):
    run = frozen(repository, script=str(repository / "mine/run.py"))
    assert spec_changes.change(run, ["slurm.time=8:00:00"], is_confirmed=False)
    assert Spec.read(run.spec).launch.script == "mine/run.py"
    with pytest.raises(UserError, match="launch.script: mine/new.py is not in the frozen code"):
        spec_changes.change(run, ["launch.script=mine/new.py"], is_confirmed=True)


def test_the_trainer_has_no_working_directory(repository):
    with freeze(LoadedSpec(Spec(name="own"), "name: own\n", ()), repository) as run:
        assert not run.work.exists()


def test_a_link_to_code_outside_of_the_repository_is_frozen_with_its_content(repository, tmp_path):
    write(tmp_path / "other/linked.py", "X = 1\n")
    (repository / "mine/linked.py").symlink_to(tmp_path / "other/linked.py")
    first, again = frozen(repository), frozen(repository)
    write(tmp_path / "other/linked.py", "X = 2\n")
    later = frozen(repository)
    assert (first.code / "mine/linked.py").read_text() == "X = 1\n"
    assert (later.code / "mine/linked.py").read_text() == "X = 2\n"
    assert first.code.resolve() == again.code.resolve() != later.code.resolve()
    assert code_snapshot.is_whole(first.code.resolve())


def test_a_copy_with_the_content_of_links_is_taken_again_or_mended_as_any_other(
    repository, tmp_path
):
    write(tmp_path / "other/linked.py", "X = 1\n")
    (repository / "mine/linked.py").symlink_to(tmp_path / "other/linked.py")
    code = frozen(repository).code.resolve()
    os.utime(code, (1, 1))
    assert frozen(repository).code.resolve() == code
    assert code.stat().st_mtime > 1  # or the command clean might delete it
    (code / "mine").chmod(0o755)
    (code / "mine/linked.py").unlink()
    assert code_snapshot.is_whole(frozen(repository).code.resolve())


def test_an_import_through_a_link_to_a_folder_elsewhere_is_refused(repository, tmp_path):
    write(tmp_path / "other/lib/parts.py", "")
    (repository / "mine/lib").symlink_to(tmp_path / "other/lib")
    write(repository / "mine/run.py", "import lib.parts\n")
    with pytest.raises(UserError, match=r"run.py imports .*parts.py, which is not frozen: a link"):
        frozen(repository)


def test_an_absolute_path_to_a_file_of_the_repository_is_named(repository):
    args = ["--config", f"{repository}/mine/words.txt", "--data=/nowhere", str(repository / "data")]
    _, lines = own_script.named_inputs(Launch(script="mine/run.py", args=args), repository)
    assert sum("write mine/words.txt" in line for line in lines) == 1
    assert not any("words.txt leads out" in line for line in lines)


def test_code_that_the_spec_puts_on_the_search_path_is_refused(repository, tmp_path):
    write(tmp_path / "other/elsewhere.py", "")
    subprocess.run(["git", "-C", tmp_path / "other", "init", "-q"], check=True)
    write(repository / "mine/run.py", "import elsewhere\n")
    with pytest.raises(UserError, match=r"imports elsewhere from .*PYTHONPATH leads there"):
        frozen(repository, env={"PYTHONPATH": str(tmp_path / "other")})


@pytest.mark.parametrize(
    "name",
    ["hf_token", "hf_token.txt", "password.txt", "gcp-key.json", "wandb_key.txt", "prod.env.local"],
)
def test_a_secret_beside_a_script_is_not_frozen(repository, name):
    write(repository / name, "x")
    write(repository / "mine" / name, "x")
    write(repository / "mine/account.json", '{"k": "-----BEGIN PRIVATE KEY-----"}')
    run = frozen(repository)
    names = {Path(each).name for each in code_snapshot.frozen_names(run.code)}
    assert "helper.py" in names and names.isdisjoint({name, "account.json"})
