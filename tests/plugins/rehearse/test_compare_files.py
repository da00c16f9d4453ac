"""The comparison of final files runs nothing that a file has."""

import argparse
import os
import pathlib
import pickle

import numpy
import pytest
import torch

from slurm_job_kit.jobs.plugins.rehearse import final_state
from slurm_job_kit.jobs.plugins.rehearse.probe.compare_files import compare_file


class Evil:
    """Makes a folder in the process that unpickles it."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def compared(tmp_path, name, write, *values):
    """How files differ that `write` has made of two values."""
    paths = [tmp_path / folder / name for folder in ("ours", "theirs")]
    for path, value in zip(paths, values, strict=True):
        path.parent.mkdir(parents=True)
        write(value, path)
    return compare_file(name, *map(str, paths))


def dump(value, path):
    path.write_bytes(pickle.dumps(value))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.pt", torch.save),
        ("a.bin", dump),
        ("a.pkl", dump),
        ("a.npz", lambda value, path: numpy.savez(path, state=numpy.array([value], dtype=object))),
        ("a.npy", dump),
    ],
)
def test_a_file_with_objects_is_not_compared_and_nothing_in_it_runs(tmp_path, name, write):
    marks = [Evil(tmp_path / "mark"), Evil(tmp_path / "mark2")]
    found = compared(tmp_path, name, write, *marks)
    assert {each.name for each in tmp_path.iterdir()} == {"ours", "theirs"}
    assert found["uncompared"].startswith(f"{name}: ")
    assert (found["tensors"], found["values"], "missing" in found) == (0, [], False)
    assert not compared(tmp_path / "same", name, write, {1}, {1})["uncompared"]


def test_arguments_of_a_training_are_loaded_but_nothing_in_them_runs(tmp_path):
    args = argparse.Namespace(lr=0.1, out=pathlib.Path("/x"), more=argparse.Namespace(a=[1]))
    values = [{"w": torch.full((2,), each), "args": args} for each in (1.0, 2.0)]
    found = compared(tmp_path, "a.pt", torch.save, *values)
    assert (found["tensors"], found["uncompared"]) == (1, "")
    args.evil = Evil(tmp_path / "mark")
    found = compared(tmp_path / "b", "a.pt", torch.save, *values)
    assert found["uncompared"].startswith("a.pt: it has an object of posix.mkdir, which ")
    assert not (tmp_path / "mark").exists()


def state(number):
    """What trainings save: also arrays and random states of NumPy."""
    random = numpy.random.RandomState(number)
    values = {
        "weights": torch.full((2,), 1.0),
        "numpy": random.get_state(),
        "array": numpy.full(3, number),
        "seconds": numpy.float64(number),
        "half": numpy.full(3, 0.5, dtype="float16"),
        "flags": numpy.array([True]),
    }
    return {"nested": [values]}


def test_tensors_and_arrays_are_compared(tmp_path):
    found = compared(tmp_path, "a.pt", torch.save, state(1), state(2))
    assert found["uncompared"] == "" and found["tensors"] == 1
    assert found["values"] == [f"a.pt: nested[0].{name}" for name in ("numpy[1]", "seconds")]


@pytest.mark.parametrize(
    ("name", "texts"),
    [("a.json", ("{", "{1")), ("a.bin", ("1", "2")), ("a.pt", ("PK\x03\x04", "PK\x03\x04\x01"))],
)
def test_other_and_broken_files_are_compared_byte_by_byte(tmp_path, name, texts):
    found = compared(tmp_path, name, lambda text, path: path.write_text(text), *texts)
    assert (found["tensors"], found["most"]) == (1, f"{name}: the bytes")


def test_other_files_than_the_last_are_compared_but_not_what_describes_a_checkpoint(tmp_path):
    names = ("best.pt", "best.json", "loss.csv", "a.jsonl", "step-8/last.pt", "step-8/sums.json")
    (tmp_path / "code/step-8").mkdir(parents=True)
    for at, name in enumerate(["end.pt", *names]):
        (tmp_path / "code" / name).write_text("1")
        os.utime(tmp_path / "code" / name, (100 - at, 100 - at))
    found = final_state.find(tmp_path, tmp_path / "code", None, 1.0, 100.0)
    others = [f"code/{name}" for name in ("best.json", "best.pt", "loss.csv", "step-8/last.pt")]
    assert found == (["code/end.pt"], others)


@pytest.mark.parametrize(
    ("name", "second", "other", "is_same"),
    [
        ("runs/2026-11-28_18-56-34/a.pt", "", "runs/2026-11-28_18-57-01/a.pt", True),
        ("runs/2026-11-28/18-56-34/a.pt", "", "runs/2026-11-28/18-57-01/a.pt", True),
        ("runs/20261128-185634/a.pt", "", "runs/20261128-185701/b.pt", False),
        ("step-00200012/a.pt", "step-00200012/a.pt", "step-00200024/a.pt", False),
        # A Unix time, and the first UUID's part that has no digit.
        ("1795902652.8/a-cafe-1.pt", "1795902653.1/a-7b1d-1.pt", "1795902661.5/a-00ff-1.pt", True),
    ],
)
def test_a_folder_of_another_time_has_the_same_file(tmp_path, name, second, other, is_same):
    (tmp_path / other).parent.mkdir(parents=True)
    (tmp_path / other).touch()
    known = {*(second or name).split("/")}
    assert (final_state.of_run(tmp_path, name, known) == tmp_path / other) is is_same
