"""The keys of a frozen spec that a resume may change, and its record for the trainer."""

import hashlib
from dataclasses import replace

import pytest

from slurm_job_kit.jobs.base.errors import UserError
from slurm_job_kit.jobs.base.files import read_jsonl
from slurm_job_kit.jobs.config.load import load
from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.checkpoint.manifest import Manifest
from slurm_job_kit.jobs.contract.records.frozen import Overrides
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Spec
from slurm_job_kit.jobs.plugins.changes import spec_changes
from slurm_job_kit.jobs.runs import frozen_spec, revision
from slurm_job_kit.jobs.runs.freeze import provenance

TEXT = "name: tiny  # mine\ntrain: {lr: 0.1, model_args: {depth: 2}}\nlaunch: {env: {A: b}}\n"


OVERRIDES = ["train.epochs=3"]


def change(run, words, is_confirmed):
    new = spec_changes.change(run, frozen_spec.reload(run, words), is_confirmed)
    with revision.changed({run: new}):
        pass


def frozen_overrides(run):
    overrides = records.read(Overrides, run.overrides)
    assert overrides is not None
    return list(overrides.arguments)


def reloaded(run):
    """The spec that the user's file and the frozen overrides give."""
    return load(run.spec_yaml, frozen_overrides(run)).spec


@pytest.fixture
def run(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.spec_yaml.write_text(TEXT)
    records.write(run_dir.overrides, Overrides(tuple(OVERRIDES)))
    run_dir.spec.write_text(reloaded(run_dir).to_json())
    return run_dir


def frozen(run):
    return Spec.from_json(run.spec.read_text())


@pytest.mark.plugin("scripts")
def test_what_is_wrong_in_a_spec_that_was_frozen_does_not_count_and_stays(run):
    run.spec_yaml.write_text("launch: {script: a.py}\nslurm: {partition: a\u20131, mem: 16 GB}\n")
    run.spec.write_text(run.spec.read_text().replace('"script": null', '"script": "a.py"'))
    spec = frozen_spec.reload(run, ["slurm.time=2:00:00"]).spec
    kept = (spec.slurm.time, spec.slurm.partition, spec.slurm.mem, spec.train.epochs)
    assert kept == ("02:00:00", "a\u20131", "16 GB", 3)
    with pytest.raises(UserError, match=r"^override train.lr=1: train.lr: nothing reads"):
        frozen_spec.reload(run, ["train.lr=1"])
    run.spec_yaml.write_text("train: {lr: x}\nruns_root: $GONE\n")
    with pytest.raises(UserError, match=r"(?s)lr: must be a number.* not set"):
        frozen_spec.reload(run, [])


def sha256(run):
    return hashlib.sha256(run.spec.read_bytes()).hexdigest()


FREE = [
    *("slurm.time=8:00:00", "slurm.partition=long", "slurm.sbatch_args.nice=5"),
    *("slurm.signal_lead_s=9", "checkpoint.every_steps=5", "log.every_steps=5"),
    *("launch.stop_check_steps=1", "launch.allow_public_rendezvous=true", "launch.interface=ib0"),
]


def test_what_moves_no_bit_of_the_result_changes_without_a_question(run):
    before = frozen(run)
    change(run, FREE, is_confirmed=False)
    assert frozen(run) == reloaded(run)
    assert frozen(run).train.epochs == 3
    changed = {".".join(map(str, path)) for path in frozen_spec.differences(before, frozen(run))}
    assert changed == {word.partition("=")[0] for word in FREE}
    assert not run.changes.exists()


def test_the_rest_is_shown_and_not_done_without_a_confirmation(run):
    before = run.spec.read_text(), run.spec_yaml.read_text()
    words = ["train.lr=0.05", "train.model_args.depth=3", "slurm.nodes=4", "slurm.time=9:00:00"]
    words += ["launch.env.B=ü", "train.transform=a.b:c"]
    with pytest.raises(UserError) as caught:
        change(run, words, is_confirmed=False)
    assert str(caught.value) == (
        "resume: the result depends on what this changes\n"
        "  slurm.nodes: 1 -> 4\n"
        "  train.model_args.depth: 2 -> 3\n"
        '  train.transform: null -> "a.b:c"\n'
        "  train.lr: 0.1 -> 0.05\n"
        '  launch.env.B: null -> "ü"\n'
        "  hint: repeat it with YES=1"
    )
    assert (run.spec.read_text(), run.spec_yaml.read_text()) == before
    assert not run.changes.exists()


def save(run, global_batch_size):
    (run.checkpoints / "step-00000003").mkdir(parents=True, exist_ok=True)
    saved = Manifest(3, files={}, global_batch_size=global_batch_size)
    (run.checkpoints / "step-00000003/manifest.json").write_bytes(saved.to_bytes())


def test_another_global_batch_is_refused_where_a_checkpoint_has_one(run):
    change(run, ["launch.nproc_per_node=3"], is_confirmed=True)
    save(run, 96)
    with pytest.raises(UserError, match=r"from 96 to 128 .*\n.*global_batch_size=96 "):
        change(run, ["launch.nproc_per_node=4"], is_confirmed=True)
    words = ["launch.nproc_per_node=4", "train.global_batch_size=96", "train.grad_accum_steps=1"]
    change(run, words, is_confirmed=True)
    save(run, 32)  # by another number of ranks: left to the trainer
    change(run, ["launch.nproc_per_node=1"], is_confirmed=True)


def test_a_confirmed_change_is_frozen_and_recorded_for_its_spec(run):
    change(run, ["train.lr=0.05", "slurm.nodes=4"], is_confirmed=True)
    assert (frozen(run).train.lr, frozen(run).slurm.nodes) == (0.05, 4)
    assert run.spec_yaml.read_text() == TEXT
    assert frozen_overrides(run) == [*OVERRIDES, "train.lr=0.05", "slurm.nodes=4"]
    assert frozen(run) == reloaded(run)
    (record,) = read_jsonl(run.changes)
    assert record["changes"] == {"slurm.nodes": [1, 4], "train.lr": [0.1, 0.05]}
    assert record["spec_sha256"] == sha256(run)
    assert record["time"] > 1e9


def test_a_spec_without_its_overrides_is_not_changed(run):
    run.overrides.unlink()
    before = run.spec.read_text()
    with pytest.raises(UserError, match=r"overrides\.json is missing"):
        change(run, ["slurm.time=8:00:00"], is_confirmed=False)
    assert run.spec.read_text() == before


def test_a_free_change_leaves_a_confirmed_spec_confirmed_and_no_other(run):
    change(run, ["slurm.time=8:00:00"], is_confirmed=True)
    assert not run.changes.exists()
    change(run, ["train.lr=0.05"], is_confirmed=True)
    change(run, ["slurm.time=9:00:00"], is_confirmed=False)
    assert [record["spec_sha256"] for record in read_jsonl(run.changes)][-1] == sha256(run)
    edited = run.spec.read_text().replace('"lr": 0.05', '"lr": 0.2')
    run.spec.write_text(edited)
    run.overrides.write_text(run.overrides.read_text().replace("0.05", "0.2"))
    change(run, ["slurm.time=9:30:00"], is_confirmed=False)
    recorded = [record["spec_sha256"] for record in read_jsonl(run.changes)]
    assert len(recorded) == 2 and sha256(run) not in recorded


def test_the_record_is_there_before_the_spec_changes(run):
    spec_changes.change(run, frozen_spec.reload(run, ["train.lr=0.05"]), is_confirmed=True)
    assert frozen(run).train.lr == 0.1
    assert len(read_jsonl(run.changes)) == 1


@pytest.mark.parametrize("word", ["name=b", "runs_root=/elsewhere", "dir_mode='0750'"])
def test_what_the_run_directory_has_never_changes(run, word):
    before = run.spec.read_text()
    with pytest.raises(
        UserError, match=r"cannot change: the run directory was made with it\n  hint: submit"
    ):
        change(run, [word], is_confirmed=True)
    assert run.spec.read_text() == before


def test_changed_setup_lines_reach_the_script_that_every_start_sources(run):
    known = provenance(run.path, "x")
    records.write(run.provenance, replace(known, interpreter="/opt/a python"))
    run.setup.write_text("export KIT_PYTHON=x\n")
    change(run, ["setup=[module load a]"], is_confirmed=True)
    assert run.setup.read_text() == "export KIT_PYTHON='/opt/a python'\nmodule load a\n"
