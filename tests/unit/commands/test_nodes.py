"""What status, why and report show of nodes: their history, and which ones a run does without."""

import json
import time
from typing import Any

import pytest

from slurm_job_kit.jobs.__main__ import main
from slurm_job_kit.jobs.commands import status
from slurm_job_kit.jobs.commands.views import nodes
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


def listed(capsys, *words):
    """The nodes in the order of `status --nodes --json`."""
    capsys.readouterr()
    assert main(["status", "--nodes", "--json", *words]) == 0
    return {row["node"]: row for row in json.loads(capsys.readouterr().out)}


BAD = ended(sign("b"), nodes="b")
SOFT = {"kind": "hang", "is_left_out": False, "failure": "x"}
# attempts -> (attempts, node hours, failures, hours since the last failure, left out for)
HISTORIES: dict[str, Any] = {
    "well": ([ended()], {"a": (1, 2, {}, None, None), "b": (1, 2, {}, None, None)}),
    "several": (
        [ended(ago=5), ended(sign("b"), sign("a", **SOFT), ago=3), ended(sign("b", "gpu_fault"))],
        {
            "b": (3, 6, {"bad_node": 1, "gpu_fault": 1}, 1, 23),
            "a": (3, 6, {"hang": 1}, 3, None),
        },
    ),
    "expired": ([BAD | {"stop": NOW - 30 * HOUR}], {"b": (1, 0, {"bad_node": 1}, 30, None)}),
    "later, of a soft kind": (
        [ended(sign("b"), nodes="b", ago=4), ended(sign("b", **SOFT), nodes="b")],
        {"b": (2, 4, {"bad_node": 1, "hang": 1}, 1, 20)},
    ),
    "followed the run": (
        [ended(sign("a", **SOFT), ago=2), ended(sign("b", **SOFT))],
        {"a": (2, 4, {}, None, None), "b": (2, 4, {}, None, None)},
    ),
    "left out by Slurm": (
        [ended(sign("b", "node_failure"), nodes="b", unreachable_nodes=["b"])],
        {"b": (1, 2, {"node_failure": 1}, 1, None)},
    ),
    "recorded by the next start": (
        [ended(sign("b"), nodes="b", job_state="LOST")],
        {"b": (1, 0, {"bad_node": 1}, 1, 23)},
    ),
    "without a plan": (
        [ended(sign("b")) | {"nodes": None, "start": None, "job_id": None}],
        {"b": (0, 0, {"bad_node": 1}, 1, 23)},
    ),
    "without Slurm": ([ended(sign("b"), job_id="local-b-9")], {}),
}


@pytest.mark.parametrize("case", HISTORIES)
def test_the_history_of_a_node_is_that_of_the_attempts(here, capsys, case):
    attempts, expected = HISTORIES[case]
    write(make_run(here), *attempts)
    rows = listed(capsys)
    assert list(rows) == list(expected)
    for node, (number, hours, failures, ago, lasts) in expected.items():
        row = rows[node]
        assert (row["attempts"], row["node_hours"], row["failures"]) == (number, hours, failures)
        assert row["last_failure"] == (None if ago is None else NOW - ago * HOUR)
        assert row["left_out_until"] == (None if lasts is None else NOW + lasts * HOUR)


def test_a_node_is_left_out_until_the_last_of_the_runs_uses_it_again(here, capsys):
    write(make_run(here, "1"), ended(sign("b"), nodes="b", ago=3), hours=10)
    write(make_run(here, "2"), ended(sign("b"), nodes="b", ago=9))
    write(make_run(here, "3", "other"), ended(sign("b", "gpu_fault"), nodes="b"), hours=0)
    row = listed(capsys)["b"]
    assert row["left_out_until"] == NOW + 15 * HOUR
    assert (row["attempts"], row["failures"]) == (3, {"bad_node": 2, "gpu_fault": 1})
    assert row["last_failure_run_dir"] == str(here / "runs/other/3")
    assert listed(capsys, "tiny")["b"]["attempts"] == 2
    assert listed(capsys, "1")["b"]["left_out_until"] == NOW + 7 * HOUR


def test_a_run_that_took_its_nodes_back_leaves_none_out(here, capsys):
    run = write(make_run(here), ended(sign("b"), nodes="b"), nodes_taken_back=NOW - HOUR / 2)
    row = listed(capsys)["b"]
    assert (row["failures"], row["left_out_until"]) == ({"bad_node": 1}, None)
    write(run, ended(sign("b"), nodes="b"), nodes_taken_back=NOW - 2 * HOUR)
    assert listed(capsys)["b"]["left_out_until"] == NOW + 23 * HOUR


def test_left_out_nodes_come_first_then_those_that_failed_last(here, capsys):
    signs = sign("well", "node_failure"), sign("old"), sign("new")
    attempts = [ended(each, nodes=["a", each["node"]], ago=9 - n) for n, each in enumerate(signs)]
    write(make_run(here), *attempts, ended(sign("last", "node_failure")))
    assert list(listed(capsys)) == ["new", "old", "last", "well", "a", "b"]


@pytest.mark.parametrize("file", ["attempts", "spec", "submission"])
def test_a_damaged_run_is_named_and_hides_no_other(here, capfd, file):
    write(make_run(here, "1"), ended(sign("b")))
    damaged = write(make_run(here, "2"), ended(sign("b")), job_id="8")
    getattr(damaged, file).write_text("{\n{}\n")
    assert main(["status", "--nodes"]) == 0
    shown = capfd.readouterr()
    assert [line.split()[:2] for line in shown.out.splitlines()[1:]] == [["b", "1"], ["a", "1"]]
    assert shown.err.startswith("warning: runs/tiny/2 ") and len(shown.err.splitlines()) == 1


def test_the_table_has_the_first_nodes_and_how_many_there_are(here, capsys):
    names = [f"n{number:02d}" for number in range(status.MAX_LISTED + 2)]
    write(make_run(here), ended(sign("n21"), nodes=names))
    assert main(["status", "--nodes"]) == 0
    head, first, *_, note = capsys.readouterr().out.splitlines()
    assert head.split() == " ".join(nodes.COLUMNS).split()
    assert first.split()[:5] == ["n21", "1", "2.0", "1", "bad_node"]
    assert "preflight: wrong sums" in first
    assert note.startswith("20 of 22 nodes") and "--nodes --all" in note
    assert main(["status", "--nodes", "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 23
    assert len(listed(capsys)) == 22


def test_without_an_attempt_there_are_no_nodes(here, capsys):
    for _ in range(2):
        assert main(["status", "--nodes"]) == 0
        assert "no attempt" in capsys.readouterr().out
        assert listed(capsys) == {}
        make_run(here)


def test_a_watch_shows_no_nodes(here, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["status", "--nodes", "--watch"])
    assert caught.value.code == 2


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
