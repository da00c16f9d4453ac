"""Files of the user's code that are found after a failure."""

import os

from slurm_job_kit.jobs.runs import places


def test_a_module_is_looked_for_without_reading_folders_of_data_whole(tmp_path, monkeypatch):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/helpers.py").touch()
    for number in range(40):
        (tmp_path / f"src/{number}.jpg").touch()
    read, scandir = [], os.scandir

    class Counted:
        def __init__(self, path):
            self.entries = scandir(path)

        def __enter__(self):
            return (read.append(each) or each for each in self.entries)

        def __exit__(self, *_):
            self.entries.close()

    monkeypatch.setattr(places, "MAX_FOLDERS", 10)
    monkeypatch.setattr(os, "scandir", Counted)
    assert places.find_module("gone", tmp_path, tmp_path / "runs") is None
    assert len(read) == 11  # src, and ten of its files
    assert places.find_module("helpers", tmp_path, tmp_path / "runs") == tmp_path / "src/helpers.py"
