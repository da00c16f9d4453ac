"""`KEY=VALUE` overrides: the keys that they change, and how they are frozen."""

import pytest

from slurm_job_kit.jobs.config.load import load


def test_overrides_change_what_they_name_and_nothing_else(take):
    text = "slurm: {nodes: 2, partition: a, sbatch_args: {tmp: 1G}}\ntrain: {lr: 1, epochs: 3}\n"
    arguments = ["slurm.partition=", "name=x", "slurm.nodes=4", "train.lr=1e-3", "launch.env.X=1"]
    arguments += ["train.model_args.depth=3", "slurm.sbatch_args.comment=a#b", "setup=[]"]
    arguments += ["launch.command_prefix=[a, 1]", "slurm.sbatch_args.tmp=false"]
    by_hand = """
name: x
slurm: {nodes: 4, sbatch_args: {comment: "a#b"}}
train: {lr: 0.001, epochs: 3, model_args: {depth: 3}}
launch: {env: {X: "1"}, command_prefix: [a, "1"]}
"""
    assert take(text, *arguments) == take(by_hand)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("slurm.nodes", "override slurm.nodes: is not KEY=VALUE\n  hint: write KEY=VALUE without"),
        ("train.lr=0.1,0.2", 'train.lr: must be a number, not "0.1,0.2"'),
        ("=x", "override =x: cannot be read"),
        ("train.lr.x=1", "train.lr: has no keys of its own"),
        ("name=a: b", 'name: must be text, not {"a": "b"}'),
        ("slurm.exclude=*", "slurm.exclude: this is not YAML"),
        ("train.max_steps.x=1", 'train.max_steps: must be a whole number, not {"x": 1}'),
        ("name=" + "x" * 70_000, "cannot be read"),
    ],
)
def test_a_wrong_override_is_named_as_it_was_typed(refuse, argument, message):
    errors = refuse("name: x\ntrain: {lr: 1}\n", argument)
    assert message in errors
    assert errors.startswith(f"override {argument[:90]}")


def test_a_number_is_text_on_the_command_line_where_a_key_takes_text(take, refuse):
    spec = take("name: x", "name=2024", "slurm.account=0123", "slurm.qos=1e3")
    assert (spec.name, spec.slurm.account, spec.slurm.qos) == ("2024", "0123", "1e3")
    assert "write a unit" in refuse("name: x", "slurm.mem=64")
    assert "name: must be text, not 2024" in refuse("name: 2024")


def test_the_users_file_is_frozen_unchanged_beside_the_overrides(spec_file):
    text = "# my run\nname: x   # the name\ntrain: {lr: 0.5}\n"
    overrides = ("train.lr=1", "train={epochs: 3}", "train.lr=1e-3")
    loaded = load(spec_file(text), overrides)
    assert (loaded.text, loaded.overrides) == (text, overrides)
    assert (loaded.spec.train.lr, loaded.spec.train.epochs) == (0.001, 3)
