"""Classification, the objective of the core."""

import re

import pytest
import torch
from torch.nn import functional

from slurm_job_kit.jobs.contract.spec import Train
from slurm_job_kit.trainer.errors import UserError
from slurm_job_kit.trainer.model.objectives import Classification, DataFacts, check_sums, means
from tests.core.model.test_objectives import Gives

DATA = DataFacts(Train(dataset="mine", model="net"), num_classes=3)


def scores(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), requires_grad=True)


def found(objective, outputs, batch):
    """The means of one batch."""
    sums = objective(Gives(outputs), batch)
    check_sums(sums, "x")
    return means(tuple(sums.metrics), sums.row().tolist(), objective)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_classification_of_labels_of_any_integers(dtype):
    outputs, labels = scores(4, 3), torch.tensor([0, 2, 1, 1])
    values = found(Classification(DATA), outputs, (torch.zeros(4), labels.to(dtype)))
    assert values == {
        "loss": pytest.approx(functional.cross_entropy(outputs, labels).item()),
        "accuracy": (outputs.argmax(1) == labels).sum().item() / 4,
    }


def test_labels_are_smoothed_in_training_only():
    outputs, labels = scores(4, 3), torch.tensor([0, 2, 1, 1])
    objective, model = Classification(DATA, label_smoothing=0.2), Gives(outputs)
    for is_training, smoothing in ((True, 0.2), (False, 0.0)):
        model.train(is_training)
        loss = objective(model, (torch.zeros(4), labels)).loss / 4
        expected = functional.cross_entropy(outputs, labels, label_smoothing=smoothing)
        assert loss.item() == pytest.approx(expected.item())


def test_pixels_without_a_label_count_in_neither_loss_nor_accuracy():
    outputs = scores(2, 3, 4, 5)
    labels = torch.arange(40).reshape(2, 4, 5) % 3
    labels[0, 0], labels[1, :, 2:] = -100, -100
    known = labels != -100
    sums = Classification(DATA)(Gives(outputs), (torch.zeros(2), labels))
    assert isinstance(sums.num_items, torch.Tensor) and sums.num_items.item() == known.sum() == 23
    values = found(Classification(DATA), outputs, (torch.zeros(2), labels))
    per_pixel = outputs.permute(0, 2, 3, 1)[known]
    assert values["loss"] == pytest.approx(
        functional.cross_entropy(per_pixel, labels[known]).item()
    )
    assert values["accuracy"] == (per_pixel.argmax(1) == labels[known]).sum().item() / 23


LABELS = torch.zeros(4).long()


@pytest.mark.parametrize(
    ("outputs", "labels", "words"),
    [
        (scores(4, 3), LABELS.float(), "dataset mine returns labels torch.float32 (4,)\n  hint: "),
        (scores(4, 2), LABELS, "model net returns scores of shape (4, 2), but the labels of mine"),
        (scores(4), LABELS, "model net returns scores of shape (4,), but the labels of mine"),
    ],
)
def test_a_classification_that_does_not_fit_names_both_sides(outputs, labels, words):
    with pytest.raises(UserError, match=re.escape(f"train.{words}")):
        Classification(DATA)(Gives(outputs), (torch.zeros(4), labels))


@pytest.mark.parametrize("batch", [torch.zeros(4), {"x": torch.zeros(4)}, (torch.zeros(4), 3)])
def test_a_batch_that_is_no_pair_is_refused_with_the_way_out(batch):
    kind = type(batch).__name__
    words = (
        r"train.objective classification needs batches \(inputs, targets\), but train.dataset "
        f"mine returns a {kind}\n  hint: return pairs, or name your own train.objective"
    )
    with pytest.raises(UserError, match=words):
        Classification(DATA)(Gives(scores(4, 3)), batch)
