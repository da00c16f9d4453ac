"""The path in train.init_from, at load."""

import os

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.config.load import load
from tests.core import run_files


def test_weights_in_a_pickle_are_refused(mistake):
    problem = mistake("train: {init_from: /a/weights.pt}")
    assert problem.path == ("train", "init_from")
    assert problem.what == '"/a/weights.pt" is neither .safetensors nor a directory'


def test_a_relative_init_from_is_frozen_absolute_and_without_links(
    spec_file, take, monkeypatch, tmp_path
):
    run = tmp_path / "runs" / "a" / "20260101"
    run.mkdir(parents=True)
    (run.parent / "latest").symlink_to(run.name)
    frozen = os.path.realpath(run)
    assert take("train: {init_from: runs/a/latest}").train.init_from == frozen
    assert take("name: b", "train.init_from=runs/a/latest").train.init_from == frozen
    loaded = load(spec_file("train: {init_from: runs/a/latest, lr: 0.5}  # mine\n"))
    assert loaded.overrides == (f'train.init_from="{frozen}"',)
    (run.parent / "latest").unlink()
    (tmp_path / "frozen.yaml").write_text(loaded.text)
    monkeypatch.chdir("/")
    assert load(tmp_path / "frozen.yaml", loaded.overrides).spec == loaded.spec  # from anywhere


def test_a_missing_relative_init_from_is_refused(refuse, tmp_path):
    assert refuse("train: {init_from: a/latest}") == (
        f"x.yaml:1: train.init_from: {os.path.realpath(tmp_path)}/a/latest does not exist\n"
        "  hint: write the path out; a relative one begins where you submit"
    )
    assert r"/a\x00b" in refuse("name: b", r'train.init_from="a\0b"')


def test_a_state_and_weights_from_elsewhere_exclude_each_other(slurm, here, capsys):
    run_files.make_checkpoint(run_files.make_run(here), 10)
    (here / "w.safetensors").write_bytes(b"x")
    words = ["train.init_from=w.safetensors", "slurm.nodes=1"]
    assert main(["submit", "tiny.yaml", *words, "--from", "tiny"]) == 2
    assert "remove train.init_from" in capsys.readouterr().err
