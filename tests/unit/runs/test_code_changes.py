"""Which changes of the code count, how they are shown, and the switch of a run to other code."""

import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_job_kit.jobs import records
from slurm_job_kit.jobs.errors import UserError
from slurm_job_kit.jobs.records.frozen import CodeSnapshot, Provenance
from slurm_job_kit.jobs.rundir import read_json, relink
from slurm_job_kit.jobs.runs import code_changes, code_digest, code_snapshot
from slurm_job_kit.jobs.runs.freeze import provenance
from slurm_job_kit.jobs.spec import Launch, Spec, Train
from tests.unit import run_files

FILES = {
    "model.py": "a = 1\nb = 2\n",
    "slurm_job_kit/jobs/rundir.py": "",  # as in a clone
    "trainer/loop.py": "x = 1\n",
    "docs/guide.md": "text\n",
    "tests/test_x.py": "y = 1\n",
    "configs/x.yaml": "name: x\n",
    "configs/own.py": "z = 1\n",
}


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def run(tmp_path, checkout):
    run_dir = run_files.frozen(tmp_path / "runs/x/1")
    code = run_files.freeze_code(checkout, run_dir)
    records.write(run_dir.provenance, provenance(checkout, code.name, "python3"))
    return run_dir


def changed(run, checkout, **texts):
    """The prepared code after the files changed; `docs__guide_md` is docs/guide.md."""
    for name, text in texts.items():
        path = checkout / name.replace("__", "/").replace("_md", ".md").replace("_py", ".py")
        path.write_text(text) if text is not None else path.unlink()
    return code_changes.prepare(run, Spec(), checkout)


@pytest.mark.parametrize(
    ("name", "does_count"),
    [
        *(("model.py", True), ("trainer/loop.py", True), ("configs/own.py", True)),
        *(("slurm/ddp.sbatch", True), ("labels.txt", True), ("jobs/spec.py", True)),
        *(("README.md", False), ("docs/x.py", False), ("tests/test_x.py", False)),
        *(("configs/x.yaml", False), ("Makefile", False), (".github/x.py", False)),
    ],
)
def test_results_depend_on_code_and_not_on_documents_tests_and_specs(name, does_count):
    assert code_digest.has_weight(name, code_digest.UsedCode()) is does_count


def test_what_lies_beside_a_module_that_the_spec_names_counts_wherever_it_lies():
    spec = Spec(train=Train(model="tests.parts:net"), launch=Launch(script="docs/demo/run.py"))
    used = code_digest.used_code(spec)
    assert code_digest.has_weight("tests/helper.py", used)
    assert code_digest.has_weight("docs/demo/helper.py", used)
    assert not code_digest.has_weight("docs/guide.py", used)


@pytest.mark.parametrize(
    ("spec", "name", "does_count"),
    [
        (Spec(train=Train(dataset_args={"files": ["docs/*.md"]})), "docs/guide.md", True),
        (Spec(train=Train(dataset_args={"path": "./tests/data"})), "tests/data/x/1.txt", True),
        (Spec(train=Train(dataset_args={"path": "tests/data"})), "tests/data.py", False),
        (Spec(train=Train(transform_args={"of": {"x": ".labels"}})), ".labels", True),
        (
            Spec(launch=Launch(script="a.py", args=["--with=configs/x.yaml"])),
            "configs/x.yaml",
            True,
        ),
        (Spec(launch=Launch(script="a.py", inputs=["docs"])), "docs/guide.md", True),
        (Spec(train=Train(dataset_args={"path": "/docs", "n": 3})), "docs/guide.md", False),
    ],
)
def test_a_file_that_the_arguments_name_counts_whatever_it_is(spec, name, does_count):
    assert code_digest.has_weight(name, code_digest.used_code(spec)) is does_count


def test_the_digest_changes_with_the_files_that_count_only(run, checkout):
    before = code_digest.digest_of(run.code, Spec())
    documents = changed(run, checkout, docs__guide_md="other\n")
    assert code_digest.digest_of(documents.code, Spec()) == before
    code = changed(run, checkout, model_py="a = 2\n")
    assert code_digest.digest_of(code.code, Spec()) != before


def test_the_summary_has_a_line_for_each_file_and_the_command_for_the_rest(run, checkout):
    (checkout / "new.py").write_text("1\n2\n")
    new = changed(
        run, checkout, model_py="a = 1\nb = 3\n", trainer__loop_py=None, docs__guide_md="other\n"
    )
    head, *files, command = code_changes.summary(run, new)
    assert head == f"the code of {checkout} differs from that of the run in 4 files:"
    assert files == [
        "  M model.py  +1 -1",
        "  A new.py  +2 -0",
        "  D trainer/loop.py  +0 -1",
        "  M docs/guide.md  +1 -1  (no result depends on it)",
    ]
    assert command == f"  all lines: diff -ru {run.code.resolve()} {new.code}"


def test_a_long_summary_is_cut(run, checkout):
    for number in range(30):
        (checkout / f"new{number:02d}.py").write_text("1\n")
    new = changed(run, checkout)
    lines = code_changes.summary(run, new)
    assert len(lines) == code_changes.MAX_LISTED + 3
    assert lines[-2] == "  ... and 10 more"


def test_code_that_counts_needs_a_yes_and_documents_need_none(run, checkout):
    documents = changed(run, checkout, docs__guide_md="other\n")
    code_changes.confirm(run, documents, is_confirmed=False)
    new = changed(run, checkout, model_py="a = 2\n")
    with pytest.raises(UserError, match=r"(?s)M model\.py  \+1 -2\n.*repeat it with --yes"):
        code_changes.confirm(run, new, is_confirmed=False)
    code_changes.confirm(run, new, is_confirmed=True)


def test_a_switch_leads_the_link_to_the_new_code_and_notes_it(run, checkout):
    old = run.code.resolve().name
    new = changed(run, checkout, model_py="a = 2\n")
    with code_changes.switch_code(run, new, attempt=3, step=1200):
        pass
    assert (run.code / "model.py").read_text() == "a = 2\n"
    assert not os.path.isabs(os.readlink(run.code))
    known = records.read(Provenance, run.provenance)
    assert known is not None and known.code == new.code.name
    assert [(each.code, each.attempt, each.step) for each in known.snapshots] == [
        (old, 1, 0),
        (new.code.name, 3, 1200),
    ]


def test_a_switch_to_code_without_the_kit_leads_to_this_kit_and_is_undone_as_a_whole(run, checkout):
    (checkout / "slurm_job_kit/jobs/rundir.py").unlink()
    new = changed(run, checkout)
    assert new.kit != new.code
    with pytest.raises(KeyboardInterrupt), code_changes.switch_code(run, new, 2, 0):
        assert run.kit.resolve() == new.kit
        known = records.read(Provenance, run.provenance)
        assert known is not None and known.snapshots[-1].kit == new.kit.name
        raise KeyboardInterrupt
    assert os.readlink(run.kit) == "code"


def test_a_kill_between_the_links_of_a_switch_leaves_a_kit(run, checkout, monkeypatch):
    (checkout / "slurm_job_kit/jobs/rundir.py").unlink()
    new = changed(run, checkout)
    links = []
    monkeypatch.setattr(code_changes, "relink", lambda link, target: links.append(link.name))
    with code_changes.switch_code(run, new, 2, 0):
        assert links == ["kit", "code"]
    links.clear()
    with code_changes.switch_code(run, replace(new, kit=new.code), 2, 0):
        assert links == ["code", "kit"]


def test_a_lost_kit_is_replaced_as_lost_code_is(run, checkout):
    (checkout / "slurm_job_kit/jobs/rundir.py").unlink()
    with code_changes.switch_code(run, changed(run, checkout), 2, 0):
        pass
    relink(run.kit, f"../../.code/{'0' * 64}")  # an older kit, which a purge deleted
    new = changed(run, checkout)
    assert new.is_first_lost and new.has_weight and new.kit.is_dir()


@pytest.fixture
def apart(run, checkout):
    """A run of a repository that does not have the kit; the repository."""
    (checkout / "slurm_job_kit/jobs/rundir.py").unlink()
    with code_changes.switch_code(run, changed(run, checkout), 2, 0):
        pass
    return checkout


def test_another_kit_beside_the_same_code_counts_and_is_in_the_record(run, apart):
    code, kit = run.code.resolve(), run.kit.resolve()
    other = kit.with_name("0" * 64)
    digests = [code_digest.digest_of(code, Spec(), each) for each in (None, kit, other)]
    assert len(set(digests)) == 3
    relink(run.kit, f"../../.code/{other.name}")  # as a kill before the record left it
    code_changes.mend_record(run, 3, 20)
    known = records.read(Provenance, run.provenance)
    assert known is not None
    assert [each.kit for each in known.snapshots] == [None, kit.name, other.name]


def test_the_repository_that_was_submitted_is_frozen_again_from_any_folder(
    run, apart, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert code_changes.repository_of(run) == apart
    (tmp_path / "other/.git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "other")
    assert code_changes.repository_of(run) == apart
    apart.rename(tmp_path / "moved")
    with pytest.raises(UserError, match="the repository that was submitted, is gone"):
        code_changes.repository_of(run)


def test_a_moved_repository_with_its_runs_is_frozen_again_from_its_new_place(
    run, apart, tmp_path, monkeypatch
):
    (tmp_path / ".git").mkdir()  # the run lies in the working directory's repository
    monkeypatch.chdir(tmp_path)
    assert code_changes.repository_of(run) == tmp_path


def test_a_switch_is_undone_if_the_submit_fails(run, checkout):
    before = os.readlink(run.code), run.provenance.read_text()
    new = changed(run, checkout, model_py="a = 2\n")
    with pytest.raises(KeyboardInterrupt), code_changes.switch_code(run, new, 2, 0):
        assert (run.code / "model.py").read_text() == "a = 2\n"
        raise KeyboardInterrupt
    assert (os.readlink(run.code), run.provenance.read_text()) == before


def test_a_switch_to_equal_code_adds_no_snapshot(run, checkout):
    with code_changes.switch_code(run, changed(run, checkout), 2, 0):
        pass
    known = records.read(Provenance, run.provenance)
    assert known is not None and len(known.snapshots) == 1
    assert isinstance(known.snapshots[0], CodeSnapshot)


@pytest.mark.parametrize("lost", [".", "docs/guide.md"])
def test_lost_code_is_replaced_after_a_confirmation(run, checkout, tmp_path, lost):
    run_files.unlock(run.code.resolve())
    Path(os.path.normpath(run.code.resolve() / lost)).rename(tmp_path / "elsewhere")
    (checkout / "model.py").write_text("a = 5\n")
    new = changed(run, checkout)
    with pytest.raises(UserError, match="is gone"):
        code_changes.confirm(run, new, is_confirmed=False)
    with code_changes.switch_code(run, new, 2, 0):
        assert (run.code / "model.py").read_text() == "a = 5\n"


def test_a_script_that_the_checkout_does_not_have_is_refused(run, checkout):
    with pytest.raises(UserError, match=r"launch\.script: gone\.py is not among the files"):
        code_changes.prepare(run, Spec(launch=Launch(script="gone.py")), checkout)


def snapshots(run):
    known = records.read(Provenance, run.provenance)
    assert known is not None and known.code == known.snapshots[-1].code
    return [(each.code, each.attempt) for each in known.snapshots]


def test_new_code_that_imports_live_code_is_refused_and_that_of_the_repository_is_frozen(
    run, checkout, tmp_path, monkeypatch
):
    for folder in (checkout / "src", tmp_path / "elsewhere"):
        (folder / ".git").mkdir(parents=True)
    (checkout / "src/mine.py").write_text("")
    (tmp_path / "elsewhere/theirs.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", f"{checkout}/src:{tmp_path}/elsewhere")
    spec = Spec(launch=Launch(script="model.py"))
    (checkout / "model.py").write_text("import theirs\n")
    with pytest.raises(UserError, match="model.py imports theirs from .*elsewhere/theirs.py"):
        code_changes.prepare(run, spec, checkout)
    (checkout / "model.py").write_text("import mine\n")
    with code_changes.switch_code(run, code_changes.prepare(run, spec, checkout), 2, 1):
        assert read_json(run.provenance)["live_folders"] == ["src"]


def test_a_code_that_no_attempt_used_is_not_in_the_record(run, checkout):
    old = run.code.resolve().name
    with code_changes.switch_code(run, changed(run, checkout, model_py="a = 2\n"), 2, 20):
        pass  # cancelled before attempt 2 began
    third = changed(run, checkout, model_py="a = 3\n")
    with code_changes.switch_code(run, third, 2, 20):
        assert snapshots(run) == [(old, 1), (third.code.name, 2)]
    with code_changes.switch_code(run, changed(run, checkout, model_py=FILES["model.py"]), 2, 20):
        assert snapshots(run) == [(old, 1)]


@pytest.mark.parametrize("calls_before_the_kill", [0, 1])
def test_the_next_command_mends_the_record_of_a_switch_that_was_killed(
    run, checkout, monkeypatch, calls_before_the_kill
):
    old = run.code.resolve().name
    new = changed(run, checkout, model_py="a = 2\n")
    calls = itertools.count()

    def killed(link, target):
        if next(calls) == calls_before_the_kill:
            os._exit(9)
        relink(link, target)

    if (pid := os.fork()) == 0:
        monkeypatch.setattr(code_changes, "relink", killed)
        with code_changes.switch_code(run, new, 2, 20):
            os._exit(9)
    os.waitpid(pid, 0)
    code_changes.mend_record(run, 2, 20)
    has_new = run.code.resolve() == new.code
    assert has_new is (calls_before_the_kill == 1)
    assert snapshots(run) == [(old, 1), *([(new.code.name, 2)] if has_new else [])]


def test_the_code_of_a_script_outside_of_the_repository_is_in_the_record(run, checkout, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "x.py").write_text("1\n")
    spec = Spec(launch=Launch(script=str(own / "x.py")))
    run.spec.write_text(spec.to_json())
    for text in ("2\n", "3\n"):
        (own / "x.py").write_text(text)
        new = code_changes.prepare(run, spec, checkout)
        with code_changes.switch_code(run, new, int(text), 0):
            pass
        known = records.read(Provenance, run.provenance)
        assert known is not None and new.script_code is not None
        assert known.snapshots[-1].attempt == int(text)
        assert known.snapshots[-1].script_code == new.script_code.name


def test_code_without_its_list_of_files_is_compared_all_the_same(run, checkout, tmp_path):
    before = code_digest.digest_of(run.code, Spec())
    run_files.unlock(run.code.resolve())
    (run.code / code_snapshot.LIST).rename(tmp_path / "list")
    assert code_digest.digest_of(run.code, Spec()) == before is not None
    (change,) = changed(run, checkout, model_py="a = 5\n").changes
    assert change.name == "model.py"
