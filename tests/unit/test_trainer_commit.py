"""The commit protocol: a checkpoint exists completely or not at all."""

import json
import subprocess
import sys

import pytest

from trainer import commit


def allow():
    """Permit every commit."""


def save(root, step, content=b"weights", permit=allow):
    return commit.commit(root, step, {"state.pt": lambda sink: sink.write(content)}, {}, permit)


def test_a_commit_is_read_back_and_named_by_latest(tmp_path):
    assert save(tmp_path, 7, b"seven") == "step-00000007"
    manifest, contents = commit.read(tmp_path / "step-00000007")
    assert contents == {"state.pt": b"seven"}
    assert (manifest["format_version"], manifest["global_step"]) == (1, 7)
    assert manifest["files"]["state.pt"]["size"] == 5
    assert (tmp_path / "latest").read_text() == "step-00000007\n"


@pytest.mark.parametrize("file", ["state.pt", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "empty"])
def test_any_damage_is_found(tmp_path, file, damage):
    path = tmp_path / save(tmp_path, 7) / file
    contents = bytearray(path.read_bytes())
    if damage == "flip":
        contents[len(contents) // 2] ^= 1
    path.write_bytes({"cut": contents[:-2], "empty": b""}.get(damage, contents))
    if damage == "remove":
        path.unlink()
    with pytest.raises(commit.Damaged):
        commit.read(path.parent)


def test_a_manifest_from_another_checkpoint_is_found(tmp_path):
    path = tmp_path / save(tmp_path, 7) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["global_step"] = 8
    path.write_text(json.dumps(manifest))
    with pytest.raises(commit.Damaged, match="its own SHA-256"):
        commit.read(path.parent)


def test_the_newest_whole_one_is_taken_and_a_damaged_one_put_aside(tmp_path):
    save(tmp_path, 9, b"old")
    save(tmp_path, 10, b"good")
    (tmp_path / save(tmp_path, 11) / "state.pt").write_bytes(b"weighty")
    reports = []
    manifest, contents = commit.read_newest(tmp_path, reports.append)
    assert (manifest["global_step"], contents["state.pt"]) == (10, b"good")
    assert len(reports) == 1 and "step-00000011" in reports[0]
    assert commit.committed(tmp_path) == ["step-00000010", "step-00000009"]


def test_no_checkpoint_at_all_is_none(tmp_path):
    assert commit.read_newest(tmp_path, pytest.fail) is None


def test_a_failing_writer_leaves_nothing(tmp_path):
    def fail(sink):
        sink.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        commit.commit(tmp_path, 7, {"state.pt": fail}, {}, allow)
    assert list(tmp_path.iterdir()) == []


def test_a_forbidden_commit_leaves_nothing(tmp_path):
    def forbid():
        raise PermissionError("superseded")

    with pytest.raises(PermissionError):
        save(tmp_path, 7, permit=forbid)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_never_leaves_a_committed_name(tmp_path):
    program = (
        "import os, signal, sys; from pathlib import Path; from trainer import commit\n"
        "kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "root = Path(sys.argv[1])\n"
        "commit.commit(root, 7, {'state.pt': lambda sink: sink.write(b'x')}, {}, kill)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, tmp_path], check=False).returncode == -9
    assert commit.committed(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 1
    commit.remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_are_removed_and_nothing_else(tmp_path):
    save(tmp_path, 7)
    (tmp_path / ".tmp-step-00000008-abcd").mkdir()
    commit.remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000007"]


def test_a_step_may_be_committed_again(tmp_path):
    save(tmp_path, 7, b"first")
    save(tmp_path, 7, b"second")
    assert commit.read(tmp_path / "step-00000007")[1] == {"state.pt": b"second"}


def test_retention_keeps_the_newest_and_never_the_future_instead(tmp_path):
    for step in (5, 10, 15, 20):
        save(tmp_path, step)
    commit.retain(tmp_path, 15, keep_last=2)
    assert commit.committed(tmp_path) == ["step-00000020", "step-00000015", "step-00000010"]


def test_the_commit_protocol_and_the_stop_handler_import_no_torch():
    program = "import sys, trainer.commit, trainer.stop; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
