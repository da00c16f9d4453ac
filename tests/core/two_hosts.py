"""Two clients of one folder with the caches of NFS clients: two hosts of one file server."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_job_kit.jobs.contract.rundir import RunDir

SOURCE = Path(__file__).resolve().parents[1] / "slurm/file_client.c"
# Whatever a host has looked at stays in its cache for the whole test.
CACHES = ("30", "30", "30", "30", "30")
NO_ROOT_SQUASH = "0"
LIMIT_S = 100.0


class TwoHosts(NamedTuple):
    """The same folder as two hosts see it: what one of them has looked at, it goes on to see."""

    here: Path
    there: Path

    def of(self, path: Path) -> Path:
        """The path on the host `there` of a file that the host `here` has."""
        return self.there / path.relative_to(self.here)

    def run_there(self, run_dir: RunDir) -> RunDir:
        """A run directory as the host `there` sees it."""
        return RunDir(self.of(run_dir.path))


def look(folder: Path, *missing: str) -> None:
    """Let a host put into its cache what a folder and all folders in it have, and what is missing.

    missing: names that are looked up in every folder.
    """
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names, *missing):
            (Path(parent) / name).exists()
        os.listdir(parent)
        os.stat(parent)


def why_not() -> str | None:
    """Why the client cannot run here; None where it can."""
    if os.geteuid() != 0:
        return "the file client needs root: it opens files by their handles"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "the file client needs /dev/fuse"
    lacking = [name for name in ("gcc", "fusermount3", "pkg-config") if shutil.which(name) is None]
    return f"the file client needs {', '.join(lacking)}" if lacking else None


@pytest.fixture(scope="session")
def file_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled."""
    reason = why_not()
    program = tmp_path_factory.mktemp("file-client") / "file_client"
    if reason is None:
        flags = _output("pkg-config", "--cflags", "--libs", "fuse3").split()
        if not flags:
            reason = "the file client needs libfuse3-dev"
        else:
            _output("gcc", "-O1", "-o", str(program), str(SOURCE), *flags, "-lpthread")
            reason = None if program.exists() else "the file client cannot be compiled"
    if reason is not None:
        if os.environ.get("REQUIRE_SLURM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return program


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


@pytest.fixture
def hosts(file_client: Path, tmp_path: Path) -> Iterator[TwoHosts]:
    """A folder `shared` of two hosts; the mount points lie below it."""
    server = tmp_path / "server"
    (server / "shared").mkdir(parents=True)
    with (
        _mounted(file_client, server, tmp_path / "here") as here,
        _mounted(file_client, server, tmp_path / "there") as there,
    ):
        yield TwoHosts(here / "shared", there / "shared")


@contextmanager
def _mounted(program: Path, server: Path, place: Path) -> Iterator[Path]:
    place.mkdir()
    client = subprocess.Popen([program, server, place, *CACHES, NO_ROOT_SQUASH])
    try:
        deadline = time.monotonic() + LIMIT_S
        while not os.path.ismount(place):
            assert client.poll() is None and time.monotonic() < deadline, "no file client"
            time.sleep(0.01)
        yield place
    finally:
        subprocess.run(["fusermount3", "-u", "-z", place], check=False)
        client.terminate()
        client.wait(LIMIT_S)
