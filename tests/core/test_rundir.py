"""The run directory: whole files or none, one line per record, paths in one place."""

import os
import subprocess
import sys
from unittest import mock

import pytest

from slurm_job_kit.jobs.contract import rundir
from tests.core.run_files import write_json

HOSTILE = "line\nnext\u2028sep\x85\x0b tab\t \udcff ü"


def test_a_reader_sees_the_old_or_the_new_text_after_a_failed_write(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_json(path, {"step": 1})

    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"step": 2})
    assert rundir.read_json(path) == {"step": 1}
    assert list(tmp_path.iterdir()) == [path], "a full disk keeps half a file"


def test_a_killed_writer_leaves_a_whole_file(tmp_path):
    path = tmp_path / "x.json"
    code = (
        "import json, pathlib, sys; from slurm_job_kit.jobs.contract.rundir import write_atomic\n"
        "for n in range(10**9):\n"
        "    write_atomic(pathlib.Path(sys.argv[1]), json.dumps(['x' * 5000, n]))"
    )
    with subprocess.Popen([sys.executable, "-c", code, path]) as writer:
        while not path.exists():
            assert writer.poll() is None
        writer.kill()
    assert rundir.read_json(path)[0] == "x" * 5000


def test_a_torn_last_line_does_not_count_and_spoils_no_later_record(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes('{"a": 1}\n{"a": "ü'.encode()[:-1])
    assert rundir.read_jsonl(path) == [{"a": 1}]
    rundir.append_jsonl(path, {"a": 3}, durable=True)
    assert rundir.read_jsonl(path) == [{"a": 1}, {"a": 3}]


def test_any_text_comes_back_as_it_was(tmp_path):
    record = {"error": HOSTILE}
    for _ in range(2):
        rundir.append_jsonl(tmp_path / "x.jsonl", record)
    write_json(tmp_path / "x.json", record)
    assert rundir.read_jsonl(tmp_path / "x.jsonl") == [record, record]
    assert rundir.read_json(tmp_path / "x.json") == record


def test_relink_replaces_a_link(tmp_path):
    for target in ("old", "new"):
        rundir.relink(tmp_path / "latest", target)
    assert os.readlink(tmp_path / "latest") == "new"
    assert os.listdir(tmp_path) == ["latest"]


def test_a_file_is_replaced_after_the_block_and_stays_if_the_block_fails(tmp_path):
    path = tmp_path / "x"
    for text in ("old", "new"):
        with rundir.replacing(path) as temporary:
            temporary.write_text(text)
            assert not path.exists() or path.read_text() == "old"
    with pytest.raises(KeyboardInterrupt), rundir.replacing(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
