"""The comparison of an interrupted run with a reference."""

import json
from typing import Any

import pytest

from slurm_job_kit.jobs.base.files import append_jsonl
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Slurm, Spec, Train
from slurm_job_kit.jobs.plugins.compare.compare import compare, summary, verdict
from tests.core.run_files import write_json

RESULT: dict[str, Any] = {
    "status": "completed",
    "global_step": 20,
    "metrics": {"eval_accuracy": 0.5, "train_loss": float("nan")},
    "weights_sha256": "ab" * 32,
    "attempts": 1,
    "steps_redone": 0,
    "exactness": "bitwise",
    "exactness_reason": "the same machine",
}


def ended(path, **changed):
    run = RunDir(path)
    run.path.mkdir()
    write_json(run.result, RESULT | changed)
    for step in (10, 20):
        append_jsonl(run.metrics, {"step": step, "train_loss": 1 / step})
    return run


@pytest.fixture
def reference(tmp_path):
    return ended(tmp_path / "reference")


def test_runs_that_differ_in_their_attempts_only_are_bitwise_equal(tmp_path, reference):
    run = ended(tmp_path / "run", attempts=3, steps_redone=2, exactness_reason="another")
    assert compare(run, reference) == []
    assert summary(run, reference) == "bitwise equal: 20 steps, weights abababababababab"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"weights_sha256": "cd"}, 'weights_sha256: "cd" is not "abab'),
        ({"optimizer_sha256": "cd"}, 'optimizer_sha256: "cd" is not null'),
        ({"metrics": {"eval_accuracy": 0.5}}, "metrics.train_loss: null is not NaN"),
        ({"metrics": RESULT["metrics"] | {"eval_accuracy": 0.6}}, "eval_accuracy: 0.6 is not 0.5"),
        (
            {"exactness": "sequence", "exactness_reason": "2 GPUs"},
            "exactness of the run is sequence, not bitwise: 2 GPUs",
        ),
    ],
)
def test_a_difference_in_the_result_is_named_with_both_sides(tmp_path, reference, changed, words):
    (difference,) = compare(ended(tmp_path / "run", **changed), reference)
    assert words in difference


def begun(path, step, **changed):
    """A run that began from a checkpoint of another run: its metrics begin after that."""
    run = ended(path, **changed)
    lines = run.metrics.read_text().splitlines(keepends=True)
    run.metrics.write_text("".join(line for line in lines if json.loads(line)["step"] > step))
    origin = {"run_id": "r", "run_dir": "/r", "checkpoint": f"step-{step:08}", "step": step}
    known = {"code": "c", "git_sha": None, "git_diff": None, "python": "3", "interpreter": "p"}
    write_json(run.provenance, known | {"host": "h", "versions": {}, "origin": origin})
    return run


def test_a_run_that_began_from_another_is_compared_from_there_on(tmp_path, reference):
    run = begun(tmp_path / "run", 10)
    assert compare(run, reference) == compare(reference, run) == []
    assert "metrics after step 10" in summary(run, reference)
    assert compare(run, begun(tmp_path / "later", 15)) == []
    run.metrics.write_text('{"step": 20, "train_loss": 0.06}\n')
    (difference,) = compare(run, reference)
    assert "metrics.jsonl, first at step 20" in difference


def test_the_specs_differences_that_results_depend_on_come_first(tmp_path, reference):
    run = ended(tmp_path / "run", weights_sha256="cd")
    for of, nodes, lr in ((run, 2, 0.1), (reference, 1, 0.05)):
        slurm = Slurm(nodes=nodes, time=f"0:0{nodes}:00")
        spec = Spec(name=f"n{nodes}", slurm=slurm, train=Train(lr=lr, model_args={"depth": nodes}))
        of.spec.write_text(spec.to_json())
    assert compare(run, reference) == [
        "slurm.nodes: 2 is not 1",
        "train.model_args.depth: 2 is not 1",
        "train.lr: 0.1 is not 0.05",
        f'weights_sha256: "cd" is not "{"ab" * 32}"',
    ]
    write_json(run.result, RESULT)
    assert compare(run, reference) == [], "the specs differ where all results agree"


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (b"", 'first at step 10: nothing is not {"step": 10'),
        (b'{"step": 10, "train_loss": 0.1}\n{"st\xff', 'first at step 20: {"st\\xff is not {'),
    ],
)
def test_metrics_that_end_too_early_differ(tmp_path, reference, metrics, words):
    run = ended(tmp_path / "run")
    run.metrics.write_bytes(metrics)
    (difference,) = compare(run, reference)
    assert words in difference
    run.metrics.unlink()
    assert "nothing is not" in compare(run, reference)[0]


def test_a_run_that_is_not_complete_or_no_trainers_cannot_be_compared(tmp_path, reference):
    held = ended(tmp_path / "held", status="held")
    assert compare(held, reference) == [
        f"{held.path}: is held; only completed runs can be compared"
    ]
    empty = RunDir(tmp_path / "empty")
    empty.path.mkdir()
    assert "is not complete yet" in compare(reference, empty)[0]
    script = of_script(tmp_path / "script")
    assert "is of a script" in compare(script, reference)[0]
    assert verdict(compare(script, script)) == "not compared"
    assert "saved nothing in KIT_CHECKPOINT_DIR" in compare(script, script)[0]


def of_script(path, **files):
    run = RunDir(path)
    run.checkpoints.mkdir(parents=True)
    write_json(run.result, {"status": "completed", "global_step": 20})
    for name, text in files.items():
        (run.checkpoints / name).write_text(text)
    return run


def test_two_runs_of_scripts_are_compared_by_the_files_that_they_saved(tmp_path):
    one, other = (of_script(tmp_path / name, last="a", best="b") for name in ("one", "other"))
    assert compare(one, other) == []
    assert (
        summary(one, other)
        == "equal: 2 files in checkpoints byte for byte; other files are not compared"
    )
    (other.checkpoints / "last").write_text("c")
    (other.checkpoints / "best").unlink()
    differences = compare(one, other)
    assert differences == [f"checkpoints/best: only of {one.path}", "checkpoints/last: other bytes"]
    assert verdict(differences) == "different: other weights; with equal specs"


def test_the_verdict_names_what_differs_from_where_on_and_the_likely_reason(tmp_path, reference):
    run = ended(tmp_path / "run", weights_sha256="cd")
    run.metrics.write_text(run.metrics.read_text().replace("0.05", "0.06"))
    for of, lr in ((run, 0.1), (reference, 0.05)):
        of.spec.write_text(Spec(train=Train(lr=lr)).to_json())
    words = "different: other weights, metrics differ from step 20 on; the specs differ in train.lr"
    assert verdict(compare(run, reference)) == words
    assert verdict(['best: {"step": 1} is not null']) == (
        "different: equal weights, but not all else; with equal specs"
    )
