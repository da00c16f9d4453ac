"""Compiled code, which the next attempt uses."""

import os

import pytest

from slurm_job_kit.jobs.contract.spec import Spec, Train
from slurm_job_kit.trainer.plugins.compile_cache import hooks
from tests.core.ranks import context_of, place_of


@pytest.mark.parametrize("is_disk_full", [False, True])
def test_compiled_code_is_kept_where_only_its_user_can_enter(tmp_path, monkeypatch, is_disk_full):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "before")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    folder = tmp_path / "compile-cache"
    if is_disk_full:  # mkdir fails
        folder.write_text("")
    spec = Spec(train=Train(compile=True))
    hooks.CompileCache().opened(context_of(tmp_path, spec, place_of(1, 2)))
    found = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    assert found == (None if is_disk_full else str(folder / "rank-00001"))
    assert is_disk_full or folder.stat().st_mode & 0o777 == 0o700
