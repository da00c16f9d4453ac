"""How changed code is shown and confirmed, and the switch of a run to other code."""

import os
import re
import shutil

import pytest

from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.frozen import Provenance
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.jobs.plugins.changes import code_changes
from slurm_job_kit.jobs.runs import code_snapshot, revision
from slurm_job_kit.jobs.runs.freeze import provenance
from tests.core import run_files

FILES = {"model.py": "a = 1\nb = 2\n", "lib/loop.py": "x = 1\n", "docs/guide.md": "text\n"}


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
    run_dir.kit.unlink()
    run_dir.kit.symlink_to(os.path.relpath(code_snapshot.take_kit(code.parents[1]), run_dir.path))
    records.write(run_dir.provenance, provenance(checkout, code.name))
    return run_dir


def changed(run, checkout, **texts):
    """The prepared code after the files changed; `lib__loop` is lib/loop.py."""
    for name, text in texts.items():
        path = checkout / f"{name.replace('__', '/')}.py"
        path.write_text(text) if text is not None else path.unlink()
    return code_changes.prepare(run, Spec(), checkout)


def test_changed_code_is_shown_and_needs_a_yes(run, checkout):
    (run.code / "lib/__pycache__/loop.pyc").write_bytes(b"\0")
    new = changed(run, checkout, model="a = 1\nb = 3\n", lib__loop=None, new="1\n")
    command = f"git diff --no-index {run.code.resolve()} {new.code}"
    with pytest.raises(UserError, match=rf"(?s)  {re.escape(command)}\n.*repeat it with "):
        code_changes.confirm(run, new, is_confirmed=False)
    code_changes.confirm(run, new, is_confirmed=True)


def test_equal_code_needs_no_yes(run, checkout, capfd):
    code_changes.confirm(run, changed(run, checkout), is_confirmed=False)
    assert f"the code of {checkout} is the same" in capfd.readouterr().err


def test_a_switch_leads_the_links_to_the_new_code_and_notes_it(run, checkout):
    new = changed(run, checkout, model="a = 2\n")
    with revision.changed({run: code_changes.switch(run, new)}):
        pass
    assert (run.code / "model.py").read_text() == "a = 2\n"
    assert not os.path.isabs(os.readlink(run.code))
    known = records.read(Provenance, run.provenance)
    assert known is not None and known.code == code_snapshot.digest_in(new.code.name)
    assert run.kit.resolve() == new.kit


def test_lost_code_is_replaced_after_a_confirmation(run, checkout):
    run_files.unlock(run.code.resolve())
    shutil.rmtree(run.code.resolve())
    new = changed(run, checkout, model="a = 5\n")
    with pytest.raises(UserError, match="is gone"):
        code_changes.confirm(run, new, is_confirmed=False)
    with revision.changed({run: code_changes.switch(run, new)}):
        assert (run.code / "model.py").read_text() == "a = 5\n"


def test_the_repository_that_was_submitted_is_frozen_again_from_any_folder(
    run, checkout, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert code_changes.repository_of(run) == checkout
    (tmp_path / "other/.git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "other")
    assert code_changes.repository_of(run) == checkout
    checkout.rename(tmp_path / "moved")
    with pytest.raises(UserError, match="the repository that was submitted, is gone"):
        code_changes.repository_of(run)
    checkout.symlink_to("moved")
    assert code_changes.repository_of(run) == checkout
