"""The training loop with own objectives, any metrics, early stops, no held-out part."""

import dataclasses
import errno
import hashlib
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional

from slurm_job_kit.jobs.base.files import append_jsonl, read_json, read_jsonl
from slurm_job_kit.jobs.contract.spec import Checkpoint, Log, Spec, Train
from slurm_job_kit.trainer.api import Sums
from slurm_job_kit.trainer.errors import TransientStorageError, UserError
from slurm_job_kit.trainer.training import run as module
from tests.core.test_loop import points, train

pytestmark = pytest.mark.usefixtures("process_group", "no_reader_left")

HERE = __name__
# Five micro batches of 4 an epoch.
TRAIN = Train(
    model=f"{HERE}:net",
    dataset=f"{HERE}:dataset",
    objective=f"{HERE}:scored",
    micro_batch_size=4,
    lr=0.5,
    epochs=6,
)
VALUES = [3.0, 2.0, 2.5, 1.0, 4.0, 5.0]


def net():
    return nn.Linear(3, 2)


def dataset(has_held_out=True):
    train_part, held_out = points()
    return train_part, held_out if has_held_out else None


NO_NUMBER = 9.0  # the score of an evaluation for which nothing is derived


class Scored:
    """An objective whose held-out metric `score` follows a list, one value per evaluation."""

    evaluations = 0

    def __init__(self, values=(1.0,), has_changed=False):
        self.values, self.has_changed = values, has_changed

    def __call__(self, model, batch):
        inputs, labels = batch
        loss = functional.cross_entropy(model(inputs), labels, reduction="sum")
        score = 0.0
        if not model.training:
            score = self.values[min(Scored.evaluations, len(self.values) - 1)] * len(labels)
            Scored.evaluations += 1
        metrics = {"score": torch.tensor(score)}
        if self.has_changed and not model.training:
            metrics["more"] = torch.tensor(1.0)
        return Sums(loss, torch.tensor(len(labels)), metrics)

    def derive(self, means):
        return {"double": 2 * means["score"]} if means["score"] != NO_NUMBER else {}


scored = Scored


@pytest.fixture(autouse=True)
def first_evaluation():
    Scored.evaluations = 0


def spec_of(checkpoint=None, **changes):
    changes = {"objective_args": {"values": VALUES}, **changes}
    keep = checkpoint or Checkpoint(best="eval_score", best_mode="min")
    return Spec(
        train=dataclasses.replace(TRAIN, **changes), checkpoint=keep, log=Log(every_steps=5)
    )


def evaluations(run):
    return [line for line in read_jsonl(run.metrics) if "eval_loss" in line]


def test_metrics_of_an_objective_and_what_it_derives_are_logged_and_reported(tmp_path, capsys):
    run, loop = train(tmp_path, spec_of())
    assert [line["eval_score"] for line in evaluations(run)] == VALUES
    assert [line["eval_double"] for line in evaluations(run)] == [2 * value for value in VALUES]
    first = read_jsonl(run.metrics)[0]
    assert first["train_score"] == first["train_double"] == 0 < first["train_loss"]
    assert set(loop.state.metrics) == {
        f"{part}_{name}" for part in ("train", "eval") for name in ("loss", "score", "double")
    }
    assert read_json(run.attempt(1).outcome)["metrics"] == loop.state.metrics
    assert "held-out loss 0." in (out := capsys.readouterr().out) and "  score 3  double 6\n" in out
    assert read_json(run.progress)["metrics"] == {"eval_score": 5.0, "eval_double": 10.0}


@pytest.mark.parametrize(("mode", "step"), [("min", 20), ("max", 30)])
def test_any_metric_may_choose_the_best_checkpoint_in_either_direction(tmp_path, mode, step):
    run, loop = train(tmp_path, spec_of(Checkpoint(best="eval_double", best_mode=mode)))
    value = 2 * (min if mode == "min" else max)(VALUES)
    assert loop.state.best == {"metric": "eval_double", "value": value, "step": step}
    assert (run.checkpoints / "best").read_text() == f"step-{step:08d}\n"


def test_an_evaluation_without_the_metric_of_the_best_is_not_the_best(tmp_path):
    args = {"objective_args": {"values": [NO_NUMBER, 2.0, NO_NUMBER, 3.0]}}
    best = Checkpoint(best="eval_double", best_mode="max")
    run, loop = train(tmp_path, spec_of(best, **args))
    doubles = [line.get("eval_double") for line in evaluations(run)]
    assert doubles[:4] == [None, 4.0, None, 6.0][: len(doubles)]
    assert loop.state.best["value"] == max(filter(None, doubles))


def test_auto_takes_the_accuracy_else_the_loss_in_the_direction_that_is_better(tmp_path):
    for objective, name, choose in (
        ("classification", "eval_accuracy", max),
        (f"{HERE}:scored", "eval_loss", min),
    ):
        folder = tmp_path / name
        args = {} if objective == "classification" else {"values": VALUES}
        changes: dict[str, Any] = {"objective": objective, "objective_args": args, "lr": 6.0}
        run, loop = train(folder, spec_of(Checkpoint(), **changes))
        assert loop.state.best["metric"] == name
        assert loop.state.best["value"] == choose(line[name] for line in evaluations(run))


def test_a_metric_that_the_objective_does_not_have_is_refused_with_those_that_it_has(tmp_path):
    words = (
        f"checkpoint.best is eval_accuracy, but train.objective {HERE}:scored has eval_loss, "
        "eval_score, eval_double"
    )
    with pytest.raises(UserError, match=words):
        train(tmp_path, spec_of(Checkpoint(best="eval_accuracy")))


PATIENT = {"early_stop_patience": 2}


def test_a_training_ends_when_its_metric_has_not_improved_for_too_long(tmp_path):
    # 3, 2, 2.5, 1, 4, 5: the third value is worse once, the fifth and sixth are worse in a row.
    run, loop = train(tmp_path, spec_of(**PATIENT, epochs=9))
    assert (loop.state.global_step, len(evaluations(run))) == (30, 6)
    outcome = read_json(run.attempt(1).outcome)
    assert (outcome["status"], outcome["global_step"]) == ("completed", 30)
    assert outcome["checkpoint"] == "step-00000030"
    assert outcome["best"] == {"metric": "eval_score", "value": 1.0, "step": 20}
    assert (run.checkpoints / "step-00000030").is_dir()


NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "last", "best", "num_nan"), [([NAN], 15, 5, 3), ([NAN, NAN, 3.0, NAN], 25, 15, 4)]
)
def test_a_metric_that_is_nan_is_no_improvement(tmp_path, capsys, values, last, best, num_nan):
    args = {"values": values}
    _, loop = train(tmp_path, spec_of(**PATIENT, epochs=9, objective_args=args))
    assert (loop.state.global_step, loop.state.best["step"]) == (last, best)
    out = capsys.readouterr().out
    assert out.count("eval_score is nan at step") == num_nan
    assert f"eval_score was best at step {best} (" in out


def test_without_held_out_samples_nothing_is_evaluated_and_there_is_no_best(tmp_path):
    changes: dict[str, Any] = {"dataset_args": {"has_held_out": False}, "epochs": 2}
    run, loop = train(tmp_path, spec_of(Checkpoint(), **changes))
    assert evaluations(run) == [] and loop.state.best == {} and Scored.evaluations == 0
    assert not (run.checkpoints / "best").exists()
    assert set(read_json(run.attempt(1).outcome)["metrics"]) == {
        *("train_loss", "train_score", "train_double")
    }
    words = "checkpoint.best is eval_score, but .* no held-out metric: train.dataset returns no"
    with pytest.raises(UserError, match=words):
        train(tmp_path / "best", spec_of(**changes))
    words = f"train.early_stop_patience needs held-out samples, but train.dataset {HERE}:dataset"
    with pytest.raises(UserError, match=words):
        train(tmp_path / "patient", spec_of(Checkpoint(), **changes, **PATIENT))


def test_an_objective_whose_metrics_change_is_refused(tmp_path):
    words = "returned the metrics score for one batch and score, more for another"
    with pytest.raises(UserError, match=words):
        train(tmp_path, spec_of(objective_args={"has_changed": True}))


def test_max_steps_end_a_training_within_an_epoch_with_an_evaluation(tmp_path):
    run, loop = train(tmp_path, spec_of(max_steps=7, epochs=1))
    assert loop.state.global_step == 7 and loop.length.epochs == 2
    assert [line["step"] for line in evaluations(run)] == [5, 7]


def test_a_start_after_the_last_save_completes_and_an_end_before_it_is_an_error(
    tmp_path, monkeypatch
):
    spec = spec_of(max_steps=7, epochs=1)
    run, _ = train(tmp_path, spec)
    run.attempt(1).outcome.unlink()  # killed before it wrote the marker
    _, loop = train(tmp_path, spec, attempt=2)
    outcome = read_json(run.attempt(2).outcome)
    assert (outcome["status"], outcome["global_step"]) == ("completed", 7)
    shorter = spec_of(max_steps=5, epochs=1)
    sha256 = hashlib.sha256(shorter.to_json().encode()).hexdigest()
    append_jsonl(run.changes, {"time": 1.0, "changes": {}, "spec_sha256": sha256})
    words = "train.max_steps 5 ends the training after 5 steps, but the checkpoint has 7\n  hint: "
    with pytest.raises(UserError, match=words):
        train(tmp_path, shorter, attempt=3)
    assert not run.attempt(3).outcome.exists()
    stale = mock.Mock(side_effect=OSError(errno.ESTALE, "stale"))
    monkeypatch.setattr(module, "check_owner", stale)
    with pytest.raises(TransientStorageError, match="writing the outcome to .*: stale"):
        module.conclude(loop.context, loop, "completed")
