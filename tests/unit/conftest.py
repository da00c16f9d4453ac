"""Fixtures of the unit tests: specs as text, fake Slurm clients, a process group."""

import multiprocessing
from pathlib import Path

import pytest

from slurm_job_kit.jobs.config.load import SpecError, load
from slurm_job_kit.jobs.spec import Spec
from tests.unit.fake_slurm import FakeSlurm


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
        assert load(spec_file(loaded.text), loaded.overrides) == loaded
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
