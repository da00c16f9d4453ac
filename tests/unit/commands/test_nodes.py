"""What status, why and report show of the nodes that a run does without."""

import json
import time

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.rundir import write_json
from slurm_job_kit.jobs.spec import Slurm, Spec
from tests.unit import run_files
from tests.unit.run_files import make_run

HOUR = 3600
NOW = round(time.time())


def ended(*signs, ago=1, hours=2, nodes="ab", job_id="7", **evidence):
    """An attempt that ended some hours ago, and the signs in it."""
    stop = NOW - ago * HOUR
    fields = {"start": stop - hours * HOUR, "stop": stop, "nodes": [*nodes], "job_id": job_id}
    return run_files.attempt({"signs": [*signs], **evidence}, **fields)


def sign(node, kind="bad_node", **fields):
    (made,) = run_files.signs(node, kind=kind, **fields)
    return made


def write(run, *attempts, hours=24, **submission):
    """The attempts of a run whose spec has these slurm.suspect_hours."""
    run.spec.write_text(Spec(name="tiny", slurm=Slurm(suspect_hours=hours)).to_json())
    lines = (json.dumps(each | {"attempt": n}) for n, each in enumerate(attempts, 1))
    run.attempts.write_text("".join(f"{line}\n" for line in lines))
    if submission:
        write_json(run.submission, {"argv": None, "job_id": "7"} | submission)
    return run


@pytest.mark.parametrize("words", [["status", "tiny"], ["why", "tiny"], ["report", "tiny"]])
def test_a_run_names_the_nodes_that_it_leaves_out_with_the_evidence(here, capsys, words):
    write(make_run(here), ended(sign("b")), ended(sign("c", "gpu_missing", text="it has 7 GPUs")))
    assert main(words) == 0
    shown = capsys.readouterr().out
    texts = [
        f"{node} until {time.strftime('%Y-%m-%d %H:%M', time.localtime(NOW + 23 * HOUR))}: {text}"
        for node, text in (("b", "preflight: wrong sums"), ("c", "it has 7 GPUs"))
    ]
    assert all(text in shown for text in texts)
    assert main([*words, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    of_run = {"status": lambda: value[0], "report": lambda: value["runs"][0]}
    left_out = of_run.get(words[0], lambda: value)()["left_out"]
    assert [(each["node"], each["kind"]) for each in left_out] == [
        ("c", "gpu_missing"),
        ("b", "bad_node"),
    ]
    assert left_out[0]["until"] == NOW + 23 * HOUR


@pytest.mark.parametrize("attempt", [ended(), ended(sign("b"), job_id="local-b-9")])
def test_a_run_that_leaves_no_node_out_names_none(here, capsys, attempt):
    write(make_run(here), attempt)
    for name in ("status", "why", "report"):
        assert main([name, "tiny"]) == 0
        assert "left out" not in capsys.readouterr().out
