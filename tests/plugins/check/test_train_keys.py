"""Keys of a training that exclude or need each other: refused at load, with a hint."""

import pytest

REFUSED = {
    "train: {optimizer: x, nesterov: true}": 'no optimizer "x"\n  hint: known: sgd, adamw; or your',
    "train: {strategy: dpp}": 'no strategy "dpp"\n  hint: known: ddp, ',
    "train: {nesterov: true, optimizer: adamw}": "nesterov: needs train.optimizer sgd\n  hint:",
    "train: {objective: regression, label_smoothing: 0.1}": "is for train.objective classi",
    "train: {transform_args: {size: 32}}": "transform_args: needs a train.transform\n  hint: write",
    "train: {optimizer_args: {lr: 3}}": "lr has a key of its own\n  hint: write train.lr: 3",
    "{train: {early_stop_patience: 2}, checkpoint: {best: null}}": "needs checkpoint.best, which",
    "{train: {global_batch_size: 16}, slurm: {nodes: 3}, launch: {nproc_per_node: 1}}": (
        "16 cannot be shared evenly by 3 ranks\n  hint: write 15 or 18"
    ),
    "train: {global_batch_size: 64, grad_accum_steps: 2}": "excludes train.global_batch_size 64",
    "{train: {global_batch_size: 4}, launch: {nproc_per_node: 8}}": (
        "4 cannot be shared evenly by 8 ranks\n  hint: write 8"
    ),
    "checkpoint: {best: eval_f1}": "hint: write best_mode: min, or best_mode: max",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_train_is_refused_with_a_hint(refuse_one, text):
    refuse_one(f"{text}\n", REFUSED[text])


@pytest.mark.parametrize(
    "text",
    [
        "checkpoint: {best: eval_f1, best_mode: max}",
        "{train: {global_batch_size: 66}, launch: {nproc_per_node: 2}, slurm: {nodes: 3}}",
        # As many ranks as GPUs: that number is known where they are.
        "{train: {global_batch_size: 64}, slurm: {nodes: 3, gpus_per_node: 2}}",
        "train: {transform: 'a.b:c', transform_args: {size: 32}}",
        "train: {optimizer: mine.optim:lion, optimizer_args: {momentum: 0.9}}",
    ],
)
def test_what_can_train_is_taken(take, text):
    take(f"{text}\n")
