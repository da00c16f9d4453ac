"""The content of the run directory's files: a round trip, and the errors of wrong content."""

import dataclasses

import pytest

from slurm_job_kit.jobs.contract import records
from slurm_job_kit.jobs.contract.kinds import Kind
from slurm_job_kit.jobs.contract.records import RecordError, training
from slurm_job_kit.jobs.contract.records.ended import AttemptRecord, read_attempts
from slurm_job_kit.jobs.contract.records.frozen import SpecChange
from slurm_job_kit.jobs.contract.records.nodes import (
    AgentRecord,
    AttemptPlan,
    RankError,
    ReceivedSignal,
)
from slurm_job_kit.jobs.contract.records.queued import Claim, SlurmSite
from slurm_job_kit.jobs.contract.rundir import RunDir
from slurm_job_kit.jobs.contract.spec import Spec
from tests.core import run_files
from tests.core.run_files import write_json

PLAN = records.decode(AttemptPlan, run_files.plan(), "here")


@pytest.mark.parametrize(
    "record",
    [
        PLAN,
        AgentRecord("a", signals=(ReceivedSignal(1.0, "SIGTERM"),), torchrun_exit=-9, end=2.0),
        RankError(1.0, 3, "a", "ValueError: x", kind=Kind.HANG),
        records.decode(AttemptRecord, run_files.attempt({"signals": ["SIGUSR1"]}), "here"),
        training.Result("held", reason="three crashes", attempts=3),
        training.Result("completed", metrics={"a": 0.5, "b": None}),
        training.Result("completed", weights_sha256="x", best=training.Best("eval_loss", 0.1, 7)),
        SlurmSite(30, cluster="c"),
        SpecChange(1.0, {"train.lr": (0.1, None)}, "x"),
        records.decode(Claim, run_files.claim(), "here"),
        training.Progress(3, total=9, loss=0.5, speed={"mfu": 0.5}),
    ],
    ids=lambda record: type(record).__name__,
)
def test_what_is_written_is_read(tmp_path, record):
    records.write(tmp_path / "x.json", record)
    assert records.read(type(record), tmp_path / "x.json") == record


def test_a_result_has_the_keys_of_what_has_ended(tmp_path):
    counted = {"attempts": 1, "steps_redone": 0}
    script = training.Result("completed", attempts=1, steps_redone=0)
    assert records.encode(script) == {"status": "completed", **counted}
    trained = dataclasses.replace(script, weights_sha256="x")
    encoded = records.encode(trained)
    assert isinstance(encoded, dict) and encoded["best"] is None


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"attempt": "1"}, "attempt: expected int"),
        ({"attempt": True}, "attempt: expected int"),
        ({"nodes": "a,b"}, "nodes: expected tuple"),
        ({"nodes": ["a", 1]}, r"nodes\[1\]: expected str"),
        ({"deadline": "soon"}, "deadline: expected float"),
        ({"head": {"address": "a", "how": "b", "port": [1]}}, "head: port: expected int"),
    ],
)
def test_a_wrong_type_is_named_with_its_file_and_key(tmp_path, changed, named):
    write_json(tmp_path / "plan.json", run_files.plan(**changed))
    with pytest.raises(RecordError, match=rf"plan\.json: {named}"):
        records.read(AttemptPlan, tmp_path / "plan.json")


def test_a_missing_key_is_named_and_an_unknown_one_is_ignored(tmp_path):
    path = tmp_path / "plan.json"
    write_json(path, run_files.plan(new_in_a_later_kit=1))
    assert records.read(AttemptPlan, path) == PLAN
    write_json(path, {"attempt": 1})
    with pytest.raises(RecordError, match=r"plan\.json: the key job_id is missing"):
        records.read(AttemptPlan, path)
    path.write_text("{")
    with pytest.raises(RecordError, match=r"plan\.json: not JSON"):
        records.read(AttemptPlan, path)
    path.write_text("[1]")
    with pytest.raises(RecordError, match=r"plan\.json: expected a JSON object"):
        records.read(AttemptPlan, path)


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5000, '"\\ud800"', "\0"])
def test_json_that_python_does_not_read_or_that_is_no_object_is_named(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(RecordError, match=r"plan\.json"):
        records.read(AttemptPlan, tmp_path / "plan.json")


def test_a_spec_of_a_wrong_type_is_named_with_its_key(tmp_path):
    path = tmp_path / "spec.json"
    text = Spec().to_json()
    assert Spec.from_json(text) == Spec()
    for old, new, what in [
        ('"nodes": 1', '"nodes": [1]', "slurm: nodes: expected str"),
        ('"nodes": 1', '"nodes": "many"', "many"),
        ('"epochs"', '"epochs": null, "x"', "train: epochs: expected int"),
        ('"train"', '"x"', "the section train is missing"),
    ]:
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(RecordError, match=rf"spec\.json: .*{what}"):
            Spec.read(path)


def test_a_wrong_line_is_named_by_its_number(tmp_path):
    run = RunDir(tmp_path)
    run_files.recorded(run)
    run_files.recorded(run, decision="dance")
    with pytest.raises(RecordError, match=r"attempts\.jsonl, line 2: decision: expected one of"):
        read_attempts(run)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"status": "stopped", "global_step": 7}', training.Outcome("stopped", 7)),
        ('{"status": ["odd"], "global_step": 7}', training.Outcome(None, 7)),
        ('{"status": "stopped", "global_step": "far"}', training.Outcome("stopped", None)),
        ('"odd"', None),
        ("stopped", None),
    ],
)
def test_nonsense_of_a_users_script_is_ignored(tmp_path, text, found):
    (tmp_path / "outcome.json").write_text(text)
    assert records.read_leniently(training.Outcome, tmp_path / "outcome.json") == found
