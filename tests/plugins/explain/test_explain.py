"""The command explain: keys with type and meaning, and the origin of each value of a spec."""

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.config.keys import keys
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.records.frozen import Overrides
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.runs import lookup
from tests.core.run_files import make_run

SPEC = """name: tiny
slurm:
  nodes: 2
  sbatch_args: {nice: 5}
train:
  lr: 0.2
"""


@pytest.fixture
def explain(here, capsys):
    """`explain(word, ...)`: the lines that it prints, split at spaces."""
    (here / "own.yaml").write_text(SPEC)

    def explained(*words):
        assert main(["explain", *words]) == 0
        return [line.split() for line in capsys.readouterr().out.splitlines()]

    return explained


@pytest.fixture
def refused(here, capsys):
    def error(*words):
        assert main(["explain", *words]) == 2
        return capsys.readouterr().err

    return error


def fact(lines, name):
    return next(" ".join(line[1:]) for line in lines if line[0] == name)


def test_a_key_has_type_default_and_meaning(explain):
    lines = explain("train.momentum")
    assert lines[0] == ["train.momentum"]
    assert fact(lines, "type") == "a number, at least 0 and less than 1"
    assert fact(lines, "default") == "0.9"
    assert "sgd" in fact(lines, "meaning")


def test_every_key_and_every_section_is_explained(explain):
    assert {line[0] for line in explain()[1:]} == {key.dotted for key in keys().values()}
    explained_keys = [line[0] for line in explain("checkpoint")[1:]]
    assert explained_keys == [key.dotted for key in keys().values() if key.path[0] == "checkpoint"]


def test_a_value_has_the_place_that_set_it(explain):
    assert fact(explain("train.lr", "own.yaml"), "from") == "own.yaml:6"
    assert fact(explain("train.epochs", "own.yaml"), "from") == "default"
    changed = explain("train.lr=0.5", "own.yaml", "train.lr")
    assert fact(changed, "value") == "0.5"
    assert fact(changed, "from") == "command line: train.lr=0.5"
    by_text = explain("own.yaml", "train.lr", "--set", "train.lr=0.4 train.epochs=3")
    assert fact(by_text, "value") == "0.4"


def test_a_run_stands_in_place_of_a_spec(here, explain):
    run = make_run(here)
    run.spec_yaml.write_text(SPEC)
    records.write(run.overrides, Overrides(("train.epochs=7",)))
    for name in ("tiny", run.run_id, str(run.path)):
        lines = explain("train.epochs", name)
        assert fact(lines, "value") == "7"
        assert fact(lines, "from") == "command line: train.epochs=7"
    assert fact(explain("train.lr", "tiny"), "from") == "runs/tiny/20260101/spec.yaml:6"
    assert [RunDir(run.path)] == lookup.all_runs()


def test_an_unknown_word_names_the_near_ones(here, refused):
    assert "train.lr?" in refused("lr")
    assert "micro_batch_size" in refused("train.micro_batch")
    assert "tiny.yaml" in refused("tin.yaml")
    assert "known: " in refused("qqqqqqqq")


def test_words_that_cannot_go_together_are_refused(refused):
    assert "tiny.yaml" in refused("tiny.yaml", "other.yaml")
    assert "train.lr" in refused("train.lr", "train.epochs")
    assert "train.lr=3" in refused("train.lr=3")
    assert "slurm.nodes" in refused("tiny.yaml", "slurm.nodes=none")
