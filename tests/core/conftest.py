"""Fixtures of the unit tests: specs, fake Slurm clients, folders with runs, a process group."""

import contextlib
import io
import ipaddress
import multiprocessing
import os
import socket
from pathlib import Path

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.config.load import SpecError, load
from slurm_job_kit.jobs.contract.problems import Problem
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.jobs.plugins import PLUGINS
from slurm_job_kit.jobs.runs import lookup
from tests.core.fake_slurm import FakeSlurm
from tests.core.run_files import TINY, frozen, write_json
from tests.core.two_hosts import file_client as file_client
from tests.core.two_hosts import hosts as hosts


@pytest.fixture(autouse=True, scope="session")
def no_name_server():
    """The names of nodes are unknown at once: a name server that drops queries takes 10 s each."""
    look_up, here = socket.getaddrinfo, (None, "", "localhost", socket.gethostname())

    def local_only(host, *args, **kwargs):
        if host not in here and not is_address(str(host)):
            raise socket.gaierror(socket.EAI_NONAME, f"{host}: no such name in these tests")
        return look_up(host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", local_only)
        yield


def is_address(host):
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host.partition("%")[0]))
    return False


@pytest.fixture
def spec_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        path = Path("x.yaml")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def take(spec_file):
    """Loads a text, and checks that its frozen spec loads as the same spec."""

    def taken(text: str | bytes, *overrides: str) -> Spec:
        loaded = load(spec_file(text), overrides)
        assert load(spec_file(loaded.text), loaded.overrides).spec == loaded.spec
        assert Spec.from_json(loaded.spec.to_json()) == loaded.spec
        return loaded.spec

    return taken


@pytest.fixture
def refuse(spec_file):
    """The errors of a text as the user sees them."""

    def refused(text: str | bytes, *overrides: str) -> str:
        with pytest.raises(SpecError) as caught:
            load(spec_file(text), overrides)
        return str(caught.value)

    return refused


@pytest.fixture
def refuse_one(refuse):
    """The error of a text of one line and one mistake, in which words stand."""

    def refused(text: str, words: str) -> str:
        errors: str = refuse(text)
        assert errors.startswith("x.yaml:1: ") and words in errors and errors.count("x.yaml:") == 1
        return errors

    return refused


@pytest.fixture
def mistake(spec_file):
    """The one problem of a text, with its place, key and hint."""

    def found(text: str, *overrides: str) -> Problem:
        with pytest.raises(SpecError) as caught:
            load(spec_file(text), overrides)
        (problem,) = caught.value.problems
        return problem

    return found


@pytest.fixture
def run(tmp_path):
    """A run directory as `freeze` leaves it. Some tests have a fuller one of their own."""
    return frozen(tmp_path)


@pytest.fixture
def fake_slurm(tmp_path, monkeypatch):
    """Fakes of Slurm's clients on PATH, and no enclosing job."""
    slurm = FakeSlurm(tmp_path / "fake-slurm")
    monkeypatch.setenv("PATH", f"{slurm.bin}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return slurm


@pytest.fixture(scope="module")
def process_group(tmp_path_factory):
    """A process group of this process alone, over gloo."""
    import torch  # most unit tests need none
    import torch.distributed as dist

    threads = torch.get_num_threads()
    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.fixture
def no_reader_left():
    """The workers of a feed end with it. One that is left would keep pytest from its end."""
    yield
    left = multiprocessing.active_children()
    for process in left:
        process.kill()
        process.join()
    assert left == []


@pytest.fixture(scope="session")
def frozen_code(tmp_path_factory):
    """The frozen code that all tests share: to copy it takes most of the time of a submit."""
    return tmp_path_factory.mktemp("code")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory with a spec, a runs root, and no Slurm."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "KIT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KIT_SITE", "")
    monkeypatch.setenv("KIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("MODULEPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path


@pytest.fixture
def slurm(here, fake_slurm, monkeypatch, frozen_code):
    """The same working directory with Slurm's clients, and without what takes seconds."""
    (here / "runs").mkdir()
    (here / "runs/.code").symlink_to(frozen_code)
    monkeypatch.delitem(PLUGINS, "check", raising=False)
    return fake_slurm


@pytest.fixture
def submitted(slurm):
    """A run whose job 4711 is RUNNING; a test sees nothing of what submit printed."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(["submit", "tiny.yaml"]) == 0
    (run,) = lookup.all_runs()
    return run


@pytest.fixture
def guarded(slurm, submitted, capsys):
    """`guarded(first, second)`: a run whose job 4711 has successor 4712, in these two states."""
    run = submitted
    write_json(run.successor, {"job_id": "4712", "after": "4711", "reason": "because"})

    lookup.remember(run, "4712")

    def states(first, second):
        slurm.set_state("4711", first)
        slurm.set_state("4712", second)
        capsys.readouterr()
        return run

    return states
