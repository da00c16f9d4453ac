"""The commit protocol: a checkpoint exists completely or not at all, and is read back."""

import errno
import io
import json
import os
import random
import threading
from pathlib import Path

import pytest

from slurm_job_kit.jobs.base import files
from slurm_job_kit.jobs.contract.checkpoint import reader
from slurm_job_kit.jobs.contract.checkpoint.manifest import Manifest, manifest_text
from slurm_job_kit.jobs.contract.checkpoint.names import checkpoint_name, checkpoint_names
from slurm_job_kit.jobs.contract.checkpoint.part_file import Entry, header
from slurm_job_kit.trainer.checkpoint import commit, recovery
from slurm_job_kit.trainer.checkpoint.commit import PendingCheckpoint, Retention
from slurm_job_kit.trainer.errors import StorageError, Superseded, TransientStorageError, UserError
from tests.core import file_operations


def allow():
    """Permit every commit."""


ALL = Retention(10)
PART = "rank-00000.safetensors"


def pending(step, content=b"weights", check_before_rename=allow):
    manifest = Manifest(step, metrics={"loss": 1e-05}, files={})

    def write(sink):
        sink.write(header([Entry("x", "U8", [len(content)], len(content))]))
        sink.write(content)

    return PendingCheckpoint(manifest, {PART: write}, check_before_rename)


def save(root, step, content=b"weights", keep=ALL, check_before_rename=allow):
    commit.commit_and_prune(root, pending(step, content, check_before_rename), keep)
    return checkpoint_name(step)


def names(root):
    return sorted(path.name for path in root.iterdir())


def content(contents):
    (name,) = contents.part_names
    found = bytearray()

    def wanted(places):
        begin, end = places["x"]
        found[:] = bytes(end - begin)
        yield begin, [memoryview(found)]

    contents.read_part(name, wanted)
    return bytes(found)


def read(directory):
    return content(reader.Contents.open(directory))


def read_newest(root, reports=None):
    report = pytest.fail if reports is None else reports.append
    return recovery.read_newest(root, checkpoint_names(root), content, report)


@pytest.fixture(autouse=True)
def no_delays(monkeypatch):
    monkeypatch.setattr(reader, "RETRY_DELAYS_S", (0, 0))


def test_a_commit_is_read_back_and_named_by_latest(tmp_path):
    assert save(tmp_path, 7, b"seven") == "step-00000007"
    assert read(tmp_path / "step-00000007") == b"seven"
    manifest = reader.read_manifest(tmp_path / "step-00000007")
    assert (manifest.format_version, manifest.global_step) == (6, 7)
    assert [*manifest.files] == [PART]
    assert manifest.metrics == {"loss": 1e-05}
    assert (tmp_path / "latest").read_text() == "step-00000007\n"
    assert names(tmp_path) == ["latest", "step-00000007"]
    assert names(tmp_path / "step-00000007") == ["manifest.json", PART]


def damage(path, how):
    contents = bytearray(path.read_bytes())
    if how == "flip":
        contents[len(contents) // 2] ^= 1
    if how == "zeroed page":
        contents[4096:8192] = bytes(len(contents[4096:8192]))
    path.write_bytes(
        {"cut": contents[:-2], "empty": b"", "longer": contents + b"\n"}.get(how, contents)
    )
    if how in ("missing", "a directory", "a FIFO"):
        path.unlink()
    if how == "a directory":
        path.mkdir()
    if how == "a FIFO":
        os.mkfifo(path)


HOW = ["flip", "cut", "empty", "longer", "zeroed page", "missing", "a directory", "a FIFO"]


@pytest.mark.parametrize(
    ("file", "how"),
    # A manifest has no second page.
    [(PART, how) for how in HOW] + [("manifest.json", how) for how in HOW if "page" not in how],
)
def test_row_20_any_damage_is_found_quarantined_and_the_older_one_used(tmp_path, file, how):
    save(tmp_path, 6, b"older")
    damage(tmp_path / save(tmp_path, 7, random.Random(0).randbytes(10_000)) / file, how)
    with pytest.raises(reader.DamageError, match=file):
        reader.check(tmp_path / "step-00000007")
    reports: list[str] = []
    assert read_newest(tmp_path, reports) == b"older"
    assert len(reports) == 1 and "step-00000007 is damaged and now quarantined" in reports[0]
    assert names(tmp_path) == ["latest", "quarantined-step-00000007", "step-00000006"]
    reason = (tmp_path / "quarantined-step-00000007" / "REASON").read_text()
    assert reason.strip() in reports[0]


def test_a_manifest_from_another_checkpoint_is_found(tmp_path):
    path = tmp_path / save(tmp_path, 7) / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest))
    with pytest.raises(reader.DamageError, match="its own SHA-256"):
        reader.Contents.open(path.parent)
    files = {"../x": manifest["files"][PART]}
    path.write_bytes(manifest_text({**manifest, "files": files}))
    with pytest.raises(reader.DamageError, match="files of its directory"):
        reader.Contents.open(path.parent)
    path.write_bytes(manifest_text({**manifest, "files": {PART: {}}}))
    with pytest.raises(reader.DamageError, match="size is missing"):
        reader.Contents.open(path.parent)


@pytest.mark.parametrize("version", [4, 5, 9])
def test_a_checkpoint_of_another_kit_is_no_damage(tmp_path, version):
    path = tmp_path / save(tmp_path, 7) / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_bytes(manifest_text({**manifest, "format_version": version}))
    words = rf"^checkpoint {path.parent} has format version {version}, this kit reads 6: .*$"
    with pytest.raises(UserError, match=words):
        read_newest(tmp_path)
    assert checkpoint_names(tmp_path) == ["step-00000007"]


@pytest.mark.parametrize("latest", [None, "step-00000001\n", "step-99999999\n", "", "\0"])
def test_latest_is_only_a_hint(tmp_path, latest):
    save(tmp_path, 1)
    save(tmp_path, 7, b"seven")
    (tmp_path / "latest").unlink()
    if latest is not None:
        (tmp_path / "latest").write_text(latest)
    assert read_newest(tmp_path) == b"seven"


def test_a_checkpoint_that_cannot_be_parsed_is_quarantined_each_time(tmp_path):
    def parse(files):
        raise reader.DamageError("a pickle")

    for _ in range(3):
        save(tmp_path, 7)
        present = checkpoint_names(tmp_path)
        assert recovery.read_newest(tmp_path, present, parse, lambda _: None) is None
    aside = "quarantined-step-00000007"
    assert names(tmp_path) == ["latest", aside, f"{aside}.2", f"{aside}.3"]


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EACCES, errno.ETIMEDOUT, errno.EIO])
def test_an_error_that_may_pass_is_retried_and_never_taken_for_damage(
    tmp_path, monkeypatch, number
):
    save(tmp_path, 6)
    save(tmp_path, 7, b"seven")
    really, failures = os.open, [OSError(number, "later")] * 2

    def open_later(*arguments):
        if failures:
            raise failures.pop()
        return really(*arguments)

    monkeypatch.setattr(os, "open", open_later)
    assert read_newest(tmp_path) == b"seven"
    if number != errno.EIO:
        failures += [OSError(number, "never")] * 30
        with pytest.raises(OSError, match="never"):
            read_newest(tmp_path)
        assert checkpoint_names(tmp_path) == ["step-00000007", "step-00000006"]


class BadSector(io.FileIO):
    def readinto(self, *_):
        raise OSError(errno.EIO, "Input/output error")

    read = readinto


def open_bad_sectors(name):
    """An `open` whose files of this name cannot be read."""

    def opened(fd, mode):
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        return (BadSector if path.name == name else open)(fd, mode)

    return opened


def test_a_sector_that_stays_unreadable_is_damage(tmp_path, monkeypatch):
    save(tmp_path, 6, b"six")
    directory = tmp_path / save(tmp_path, 7)
    bad = open_bad_sectors(PART)
    monkeypatch.setattr(files, "open", bad, raising=False)
    for check in (read, reader.check):
        with pytest.raises(reader.DamageError, match=f"^{PART}: Input/output error"):
            check(directory)
    reports: list[str] = []
    assert read_newest(tmp_path, reports) is None and len(reports) == 2


def test_a_server_that_answers_nothing_puts_no_checkpoint_aside(tmp_path, monkeypatch):
    save(tmp_path, 7)

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(files, "open", open_bad_sectors("manifest.json"), raising=False)
        patch.setattr(os, "rename", fail)
        with pytest.raises(OSError, match="Input/output error"):
            read_newest(tmp_path)
    assert checkpoint_names(tmp_path) == ["step-00000007"]


def test_an_attempt_superseded_while_it_reads_back_moves_no_hint_and_removes_nothing(tmp_path):
    is_owner = iter([True, False])

    def check_before_rename():
        if not next(is_owner):
            raise Superseded("attempt 2 owns the run")

    for step in (4, 5):
        save(tmp_path, step)
    with pytest.raises(Superseded):
        save(tmp_path, 6, keep=Retention(1), check_before_rename=check_before_rename)
    assert names(tmp_path) == ["latest", *(checkpoint_name(step) for step in (4, 5, 6))]
    assert (tmp_path / "latest").read_text() == "step-00000005\n"


def test_a_step_may_be_committed_again(tmp_path):
    save(tmp_path, 7, b"first")
    save(tmp_path, 7, b"second")
    assert read_newest(tmp_path) == b"second"


def test_a_name_is_given_to_what_is_on_the_disk_and_is_on_the_disk_itself(tmp_path):
    with file_operations.watched(tmp_path) as operations:
        commit.commit(tmp_path, pending(7))
    # In the order in which each happened first.
    steps = [f"{name} {path}" for name, path in operations if name in ("fsync", "os.rename")]
    temporary = ".tmp-step-00000007-attempt-0"
    files = [f"fsync {temporary}/{name}" for name in (PART, "manifest.json")]
    aside = "os.rename step-00000007"  # there is none
    assert steps == [*files, f"fsync {temporary}", aside, f"os.rename {temporary}", "fsync ."]


def test_retention_keeps_the_newest_multiples_and_the_best(tmp_path):
    for step in range(5, 45, 5):
        (tmp_path / "best").write_text("step-00000005\n")  # damaged: it decides nothing
        save(tmp_path, step, keep=Retention(2, keep_every_steps=(20,), best_step=15))
    kept = ["step-00000040", "step-00000035", "step-00000020", "step-00000015"]
    assert checkpoint_names(tmp_path) == kept
    assert (tmp_path / "best").read_text() == "step-00000015\n"
    save(tmp_path, 45, keep=Retention(2, keep_every_steps=(20,), best_step=45))
    assert checkpoint_names(tmp_path) == ["step-00000045", "step-00000040", "step-00000020"]
    assert (tmp_path / "best").read_text() == "step-00000045\n"


def test_retention_never_counts_the_future(tmp_path):
    for step in (5, 10, 15, 20):
        save(tmp_path, step)
    commit.prune(tmp_path, 15, Retention(2))
    assert checkpoint_names(tmp_path) == ["step-00000020", "step-00000015", "step-00000010"]


def test_retention_and_reading_order_checkpoints_by_step_beyond_eight_digits(tmp_path):
    for step in (99_999_998, 99_999_999, 100_000_000):
        save(tmp_path, step, str(step).encode(), keep=Retention(2))
    assert checkpoint_names(tmp_path) == ["step-100000000", "step-99999999"]
    assert read_newest(tmp_path) == b"100000000"


def test_older_checkpoints_are_removed_only_after_the_new_one_was_read_back(tmp_path, monkeypatch):
    save(tmp_path, 5, b"old")
    really = os.fsync

    def lose_bytes(descriptor):
        really(descriptor)
        os.truncate(descriptor, 5)

    monkeypatch.setattr(os, "fsync", lose_bytes)
    with pytest.raises(TransientStorageError, match=f"does not read back .*{PART} has 5 bytes"):
        save(tmp_path, 10, keep=Retention(1))
    assert names(tmp_path) == ["latest", "step-00000005"]
    assert read_newest(tmp_path) == b"old"


EXPECTED = {
    errno.ENOSPC: StorageError,
    errno.EDQUOT: StorageError,
    errno.EROFS: StorageError,
    errno.EIO: TransientStorageError,
    errno.ESTALE: TransientStorageError,
}


class Failing:
    """Counts the system calls of a save and lets the n-th one fail."""

    def __init__(self, monkeypatch, at, number):
        self.at, self.number, self.calls = at, number, []
        self.thread = threading.get_ident()  # another one's calls are no part of the save
        for name in ("mkdir", "fsync", "rename", "replace", "listdir", "open"):
            monkeypatch.setattr(os, name, self.wrapped(name, getattr(os, name)))
        monkeypatch.setattr(commit, "open", self.open, raising=False)

    def note(self, name):
        if threading.get_ident() != self.thread:
            return
        self.calls.append(name)
        if len(self.calls) == self.at:
            raise OSError(self.number, os.strerror(self.number))

    def wrapped(self, name, function):
        def call(*arguments, **options):
            self.note(name)
            return function(*arguments, **options)

        return call

    def open(self, *arguments, **options):
        self.note("open")
        file = open(*arguments, **options)  # noqa: SIM115
        for name in ("write", "flush"):
            setattr(file, name, self.wrapped(name, getattr(file, name)))
        return file


@pytest.mark.parametrize("number", EXPECTED)
def test_row_21_an_error_at_any_call_leaves_the_older_ones_and_no_temporary_file(tmp_path, number):
    at, seen = 0, set()
    while True:
        at += 1
        root = tmp_path / str(at)
        root.mkdir()
        save(root, 3, b"oldest")
        save(root, 5, b"old")
        with pytest.MonkeyPatch.context() as patch:
            failing = Failing(patch, at, number)
            try:
                save(root, 10, b"new", keep=Retention(2, best_step=10))
                is_saved, caught = True, None
            except Exception as error:
                is_saved, caught = False, error
        if len(failing.calls) < at:
            break
        seen.add(failing.calls[at - 1])
        # A read that fails once is tried again.
        if not is_saved:
            expected = TransientStorageError if "read back" in str(caught) else EXPECTED[number]
            assert type(caught) is expected, (failing.calls, caught)
            assert "saving checkpoint" in str(caught) and "step-00000010" in str(caught)
            assert "\n" not in str(caught)
            assert "step-00000005" in checkpoint_names(root)
        left = [name for name in names(root) if name.startswith(".")]
        # What fails may be the removal itself: that ends no training.
        assert left == [] or (is_saved and left[0].startswith(".tmp-old-")), failing.calls
        for name in checkpoint_names(root):
            reader.check(root / name)
    assert at > 20 and seen == {
        *("mkdir", "open", "write", "flush", "fsync", "rename", "replace", "listdir")
    }
