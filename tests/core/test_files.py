"""What a host sees of files of another host; writes replace a whole file or append a line."""

import os
from unittest import mock

import pytest

from slurm_job_kit.jobs.base import files
from slurm_job_kit.jobs.base.errors import RecordError
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.timeline import read_events
from tests.core.run_files import write_json
from tests.core.two_hosts import look

HOSTILE = "line\nnext\u2028sep\x85\x0b tab\t \udcff ü"


def test_a_host_goes_on_to_see_what_it_has_looked_at(hosts):
    """The client behaves as the tests of this file need it."""
    look(hosts.there, "x")
    (hosts.here / "x").write_text("1")
    assert not (hosts.there / "x").exists() and os.listdir(hosts.there) == []


def test_a_name_that_was_missing_is_seen_once_the_server_is_asked(hosts):
    look(hosts.there, "x", "folder")
    (hosts.here / "x").write_text("1")
    (hosts.here / "folder").mkdir()
    (hosts.here / "folder/y").write_text("2")
    assert files.exists(hosts.there / "x")
    assert files.read_text(hosts.there / "folder/y") == "2"
    assert files.is_dir(hosts.there / "folder")


def test_a_name_that_was_removed_is_missing_once_the_server_is_asked(hosts):
    (hosts.here / "x").write_text("1")
    look(hosts.there)
    (hosts.here / "x").unlink()
    assert (hosts.there / "x").exists()
    assert not files.exists(hosts.there / "x")
    with pytest.raises(FileNotFoundError):
        files.read_bytes(hosts.there / "x")


def test_a_listing_has_what_the_server_has_also_of_a_folder_that_was_replaced(hosts):
    for name in ("folder", "other"):
        (hosts.here / name).mkdir()
        (hosts.here / name / f"in-{name}").write_text("")
    look(hosts.there, "new")
    (hosts.here / "folder/in-folder").unlink()
    (hosts.here / "folder/new").mkdir()
    assert files.listdir(hosts.there / "folder") == ["new"]
    assert files.exists(hosts.there / "folder/new")
    (hosts.here / "folder").rename(hosts.here / "aside")
    (hosts.here / "other").rename(hosts.here / "folder")
    assert files.listdir(hosts.there / "folder") == ["in-other"]


def test_a_link_that_was_replaced_leads_to_the_new_place(hosts):
    files.relink(hosts.here / "link", "one")
    look(hosts.there, "two")
    assert os.readlink(hosts.there / "link") == "one"
    (hosts.here / "two").write_text("2")
    files.relink(hosts.here / "link", "two")
    assert files.exists(hosts.there / "link")
    assert os.readlink(hosts.there / "link") == "two"


def test_asking_writes_nothing(hosts):
    before = (hosts.here / ".").stat().st_mtime_ns
    for name in ("x", "no/folder", "."):
        files.ask_again(hosts.there / name)
        files.exists(hosts.there / name)
    assert os.listdir(hosts.here) == [] and (hosts.here / ".").stat().st_mtime_ns == before


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(hosts, monkeypatch):
    write_json(hosts.here / "x", 1)
    write_json(hosts.here / "y", 2)
    opened: list[int] = []

    def replaced_meanwhile(fd, mode):
        if not opened:
            (hosts.here / "y").rename(hosts.here / "x")
        opened.append(fd)
        return open(fd, mode)

    monkeypatch.setattr(files, "open", replaced_meanwhile, raising=False)
    assert files.read_bytes(hosts.there / "x").strip() == b"2"
    assert len(opened) == 2


def test_in_one_look_a_folder_is_listed_once(hosts):
    look(hosts.there, "x", "y")
    (hosts.here / "x").write_text("1")
    with files.one_look():
        assert files.listdir(hosts.there) == ["x"]
        assert files.read_text(hosts.there / "x") == "1"
        (hosts.here / "y").write_text("2")
        with pytest.raises(FileNotFoundError):
            files.read_text(hosts.there / "y")
    assert files.read_text(hosts.there / "y") == "2"


@pytest.mark.parametrize(
    "read",
    [
        files.read_json,
        files.read_jsonl,
        lambda path: records.read_leniently(records.training.Progress, path),
        read_events,
    ],
)
def test_each_reader_of_records_sees_a_file_of_another_host(hosts, read):
    look(hosts.there, "x")
    assert not read(hosts.there / "x")
    files.append_jsonl(hosts.here / "x", {"step": 3, "t": 1.0, "event": "open", "attempt": 1})
    assert read(hosts.there / "x")


def test_lines_of_two_hosts_do_not_overwrite_each_other(hosts):
    files.append_jsonl(hosts.here / "x", {"n": 1})
    look(hosts.there)
    files.append_jsonl(hosts.here / "x", {"n": 2})
    files.append_jsonl(hosts.there / "x", {"n": 3})
    for host in hosts:
        assert files.read_jsonl(host / "x") == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (os.mkfifo, ": not a regular file"),
        (os.mkdir, ": not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), ": not a regular file"),
        (lambda path: path.symlink_to(path.name), ": Too many levels of symbolic links"),
        (lambda path: path.write_bytes(bytes(files.MAX_BYTES + 1)), ": larger than 64 MiB"),
        (lambda path: path.write_bytes(b"\xff"), ": not UTF-8"),
    ],
)
def test_what_is_no_file_of_a_run_is_one_error_with_its_path(tmp_path, make, what):
    make(tmp_path / "x")
    with pytest.raises(RecordError, match=f"{tmp_path}/x{what}"):
        files.read_text(tmp_path / "x")


def test_a_reader_sees_the_old_or_the_new_text_after_a_failed_write(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_json(path, {"step": HOSTILE})

    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"step": 2})
    assert files.read_json(path) == {"step": HOSTILE}
    assert list(tmp_path.iterdir()) == [path], "a full disk keeps half a file"


def test_a_torn_last_line_does_not_count_and_spoils_no_later_record(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes('{"a": 1}\n{"a": "ü'.encode()[:-1])
    assert files.read_jsonl(path) == [{"a": 1}]
    files.append_jsonl(path, {"a": HOSTILE}, durable=True)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        files.append_jsonl(tmp_path / "link", {"a": 4})
    assert files.read_jsonl(path) == [{"a": 1}, {"a": HOSTILE}]


def test_a_file_is_replaced_after_the_block_and_stays_if_the_block_fails(tmp_path):
    path = tmp_path / "x"
    for text in ("old", "new"):
        with files.replacing(path) as temporary:
            temporary.write_text(text)
            assert not path.exists() or path.read_text() == "old"
    with pytest.raises(KeyboardInterrupt), files.replacing(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
