"""A run whose samples change between two starts, or differ between ranks, stops and says which."""

import gc
from pathlib import Path

import pytest
import torch

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract.spec import Checkpoint
from slurm_job_kit.trainer.errors import OtherData, kind_of, would_repeat
from slurm_job_kit.trainer.plugins.describe import reproducibility
from slurm_job_kit.trainer.plugins.describe.hooks import callbacks
from slurm_job_kit.trainer.process.watcher import Pulse
from slurm_job_kit.trainer.training.run import prepare
from tests.core.ranks import context_of, join, results
from tests.core.run_files import write_json
from tests.core.test_loop import train
from tests.core.test_loop_own_parts import spec_of

# A start that fails ends its process, which closes the files.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
HERE = __name__
ONE = pytest.mark.usefixtures("process_group", "no_reader_left")


@pytest.fixture(autouse=True)
def nothing_left_open():
    """Close the files before the next test begins, which would be warned of them."""
    yield
    gc.collect()


class Files:
    """Samples whose labels and inputs a file of three numbers changes: (label, input, size)."""

    num_classes = 2

    def __init__(self, path, size=40):
        self.changes = [int(word) for word in Path(path).read_text().split()]
        self.size = size + self.changes[2]

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        is_here = index == 20  # one of the sixteen
        inputs = torch.full((3,), index / self.size) + is_here * self.changes[1] + torch.rand(3)
        return inputs, (index + is_here * self.changes[0]) % 2


def files(path):
    return Files(path), None


def files_of_rank(path):
    return Files(f"{path}-{torch.distributed.get_rank()}"), None


def held_out_files(path):
    return Files(path), Files(f"{path}-held-out")


@pytest.fixture
def run_of(tmp_path):
    """A run of `files` in the file `data`; `start` trains until a stop, or fails."""
    data, numbers = tmp_path / "data", iter(range(1, 9))
    data.write_text("0 0 0")

    def start(stop_at=None, dataset="files", **changes):
        args = {"dataset": f"{HERE}:{dataset}", "dataset_args": {"path": str(data)}, **changes}
        spec = spec_of(Checkpoint(), **args)
        attempt, of_plugins = next(numbers), callbacks(Pulse())
        run, _ = train(tmp_path / "run", spec, attempt, stop_at, callbacks=of_plugins)
        return read_json(run.attempt(attempt).outcome)

    return data, start


@ONE
@pytest.mark.parametrize(
    ("part", "text", "words"),
    [
        ("", "1 0 0", r"sample 20 of the training set has SHA-256 \w{16}, and had SHA-256 \w{16}"),
        ("", "0 7 0", "sample 20 of the training set"),
        ("", "0 0 1", "the training set has 41 samples, and had 40 samples before"),
        ("-held-out", "1 0 0", "sample 20 of the held-out set"),
    ],
)
def test_other_samples_at_a_later_start_stop_it_once(run_of, part, text, words):
    data, start = run_of
    Path(f"{data}-held-out").write_text("0 0 0")
    start(7, "held_out_files")
    changed = Path(f"{data}{part}")
    changed.write_text(text)
    with pytest.raises(OtherData, match=words) as error:
        start(None, "held_out_files")
    assert "--code" in str(error.value) or "CODE=1" in str(error.value)
    assert (kind_of(error.value), would_repeat(error.value)) == ("other_data", True)
    changed.write_text("0 0 0")
    assert start(None, "held_out_files")["exactness"] == "bitwise"


@ONE
def test_a_resume_with_new_code_takes_the_samples_as_they_are(run_of):
    data, start = run_of
    provenance = data.parent / "run/provenance.json"
    data.parent.joinpath("run").mkdir()
    write_json(provenance, {"frozen": 1.0})
    start(stop_at=3)
    data.write_text("1 0 0")
    write_json(provenance, {"frozen": 2.0})
    start(stop_at=7)
    with pytest.raises(OtherData):
        data.write_text("0 0 0")
        start(stop_at=9)
    data.write_text("1 0 0")
    outcome = start()
    assert outcome["exactness"] == "approximate"
    assert "sample 20 of the training set had SHA-256" in outcome["exactness_reason"]


@ONE
def test_other_processors_may_change_values_but_no_sizes(run_of, monkeypatch):
    data, start = run_of
    start(stop_at=7)
    monkeypatch.setattr(reproducibility, "processor", lambda: "another one")
    data.write_text("0 0 1")
    with pytest.raises(OtherData):
        start()
    data.write_text("1 7 0")
    assert start()["exactness"] == "approximate"


def reads(folder, rank):
    """What a rank finds wrong with its samples where each rank has a file of its own."""
    place = join(folder, rank, 3)
    write_json(folder / "owner.json", {"attempt": 1})
    args = {"path": str(folder / "data")}
    spec = spec_of(Checkpoint(), dataset=f"{HERE}:files_of_rank", dataset_args=args)
    try:
        prepare(context_of(folder, spec, place), callbacks(Pulse()))
    except Exception as error:  # of the others: a peer is gone
        return str(error)
    return ""


def test_a_rank_with_other_samples_than_rank_0_names_itself_and_the_sample(tmp_path):
    for rank in range(3):
        (tmp_path / f"data-{rank}").write_text(f"{rank // 2} 0 0")
    found = results(reads, tmp_path, 3)
    assert found[2].startswith(
        f"train.dataset {HERE}:files_of_rank differs between ranks: sample 20"
    )
    assert " on rank 0, and SHA-256 " in found[2] and "on rank 2 (here)" in found[2]
