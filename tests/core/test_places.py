"""Files of the user's code that are found after a failure."""

import contextlib
import os

from slurm_job_kit.jobs.runs import places


def test_a_module_is_looked_for_without_reading_folders_of_data_whole(tmp_path, monkeypatch):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/helpers.py").touch()
    for number in range(40):
        (tmp_path / f"src/{number}.jpg").touch()
    read: list[str] = []
    scandir = os.scandir

    def counting(entry):
        read.append(entry.name)
        return entry

    @contextlib.contextmanager
    def counted(path):
        with scandir(path) as entries:
            yield map(counting, entries)

    monkeypatch.setattr(places, "MAX_FOLDERS", 10)
    monkeypatch.setattr(os, "scandir", counted)
    assert places.find_module("gone", tmp_path, tmp_path / "runs") is None
    assert len(read) == 11  # src, and ten of its files
    assert places.find_module("helpers", tmp_path, tmp_path / "runs") == tmp_path / "src/helpers.py"
