"""Keys of a training that exclude or need each other: refused at load, with a hint."""

import pytest

REFUSED = {
    "train: {optimizer: adam}": 'no optimizer "adam"\n  hint: did you mean adamw? known: sgd',
    "train: {strategy: deepspeed}": 'not "deepspeed"\n  hint: write fsdp, which',
    "train: {strategy: ZeRO2}": "hint: write fsdp, with reshard_after_forward: false",
    "train: {strategy: dpp}": 'not "dpp"\n  hint: did you mean ddp?',
    "train: {model: mini_renet}": 'no model "mini_renet"\n  hint: did you mean mini_resnet?',
    "train: {model: 'os:'}": "resnet50, mlp, gpt; or your own package.module:callable",
    "train: {dataset: cifar}": 'there is no dataset "cifar"\n  hint: did you mean cifar10?',
    "train: {dataset: mnist}": 'there is no dataset "mnist"\n  hint: known: digits, breast_',
    "train: {transform: x}": 'there is no transform "x"\n  hint: known: image; or your own',
    "checkpoint: {best: accuracy}": "hint: write eval_accuracy; training metrics",
    "train: {nesterov: true, optimizer: adamw}": "nesterov: needs train.optimizer sgd, not adamw",
    "train: {schedule: step, epochs: 3}": "train.schedule: step needs train.lr_milestones\n  hint:",
    "train: {lr_milestones: [2], epochs: 3}": "lr_milestones: needs train.schedule step, not const",
    "train: {schedule: step, epochs: 9, lr_milestones: [0, 2]}": "[0, 2] is not all within 1 to 8",
    "train: {schedule: step, epochs: 9, lr_milestones: [9]}": "[9] is not all within 1 to 8",
    "train: {transform_args: {size: 32}}": "transform_args: needs a train.transform\n  hint: write",
    "train: {objective: regresion}": "hint: did you mean regression?",
    "train: {optimizer_args: {lr: 3}}": "lr has a key of its own\n  hint: write train.lr: 3",
    "train: {optimizer_args: {momentum: 0.8}}": "momentum has a key of its own",
    "train: {max_steps: 5, warmup_steps: 6}": "6 is more than train.max_steps 5",
    "train: {collate: pad}": "hint: your own package.module:callable",
    "{train: {early_stop_patience: 2}, checkpoint: {best: null}}": "needs checkpoint.best, which",
    "checkpoint: {best: train_loss}": "is no held-out metric\n  hint: write eval_loss",
    "train: {static_graph: true, grad_accum_steps: 2}": "excludes train.grad_accum_steps 2: DDP",
    "train: {static_graph: true, global_batch_size: 64}": "excludes train.global_batch_size, which",
    "{train: {global_batch_size: 16}, slurm: {nodes: 3}, launch: {nproc_per_node: 1}}": (
        "16 cannot be shared evenly by 3 ranks\n  hint: write 15 or 18, or take 2 or 4 ranks"
    ),
    "train: {global_batch_size: 64, grad_accum_steps: 2}": "excludes train.global_batch_size 64",
    "{train: {global_batch_size: 64}, launch: {nproc_per_node: 2}, slurm: {nodes: 3}}": (
        "64 cannot be shared evenly by 6 ranks\n  hint: write 60 or 66, or take 4 or 8 ranks"
    ),
    "{train: {global_batch_size: 4}, launch: {nproc_per_node: 8}}": (
        "4 cannot be shared evenly by 8 ranks\n  hint: write 8, or take 4 ranks"
    ),
    "train: {sync_batchnorm: true}": "needs GPUs, and slurm.gpus_per_node is 0\n  hint: set slurm",
    "checkpoint: {best: eval_f1}": "hint: write best_mode: min, or best_mode: max",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_train_is_refused_with_a_hint(refuse, text):
    errors = refuse(f"{text}\n")
    assert REFUSED[text] in errors
    assert errors.count("x.yaml:") == 1, "one mistake, one error"


@pytest.mark.parametrize("override", ["train.optimizer=sgd,adamw", "train.strategy=ddp, fsdp"])
def test_a_list_of_names_is_for_a_sweep(refuse, override):
    assert "hint: the command sweep takes several values" in refuse("name: x\n", override)


def test_a_wrong_key_has_one_problem_and_keys_that_depend_on_it_none(mistake):
    problem = mistake("train: {nesterov: true, optimizer: adam}\n")
    assert problem.path == ("train", "optimizer") and 'no optimizer "adam"' in problem.what


@pytest.mark.parametrize(
    "text",
    [
        "checkpoint: {best: eval_f1, best_mode: max}",
        "train: {static_graph: true}",
        "train: {static_graph: true, channels_last: true, bucket_cap_mb: 50}",
        "{train: {global_batch_size: 66}, launch: {nproc_per_node: 2}, slurm: {nodes: 3}}",
        # As many ranks as GPUs: that number is known where they are.
        "{train: {global_batch_size: 64}, slurm: {nodes: 3, gpus_per_node: 2}}",
        "{train: {global_batch_size: 64}, slurm: {nodes: 3}}",
        "{train: {sync_batchnorm: true}, slurm: {gpus_per_node: 1}}",
        "train: {schedule: wsd, max_steps: 10}",
        "train: {schedule: step, epochs: 9, lr_milestones: [1, 8]}",
        "train: {schedule: step, lr_milestones: [3], max_steps: 100}",
        "train: {transform: 'a.b:c', transform_args: {size: 32}}",
        "train: {optimizer: mine.optim:lion, optimizer_args: {betas: [0.9, 0.99]}}",
        "train: {optimizer: mine.optim:lion, optimizer_args: {momentum: 0.9}}",
    ],
)
def test_what_can_train_is_taken(take, text):
    take(f"{text}\n")
