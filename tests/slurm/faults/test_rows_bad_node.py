"""One bad node (row 25): its matrix products are wrong, or it stops answering."""

import pytest

from slurm_job_kit.jobs.base.files import read_json

from ..kit import Run
from . import oracles
from .harm_nodes import BAD, faulty
from .rows import Row
from .scenario import AT_ONCE

pytestmark = pytest.mark.plugin("health", "nodes")


def records(run: Run, attempt: int) -> list[dict[str, object]]:
    errors = (read_json(run.dir.attempt(attempt).rank_error(rank)) for rank in range(3))
    return [record for record in errors if record is not None]


@pytest.mark.parametrize(
    "harm, told",
    [
        ("wrong", "preflight: a matrix product (torch.float32) is wrong in 1 of 65536 numbers"),
        ("stop", "preflight: it did not answer within 5 s"),
    ],
)
def test_row_25_a_bad_node(row: Row, harm: str, told: str) -> None:
    """The node is named and left out, and the run completes on the other three nodes."""
    run = row.start(*faulty(harm), pace=AT_ONCE).run
    run.wait()

    first, second = run.attempts()
    assert BAD in first["nodes"] and BAD not in second["nodes"]
    assert [reason["node"] for reason in first["evidence"]["plugins"]["nodes"]["reasons"]] == [BAD]
    (blamed,) = [record for record in records(run, 1) if record["kind"] == "bad_node"]
    assert blamed["host"] == BAD and str(blamed["error"]).startswith(told)
    log = run.dir.job_log.read_text()
    assert f"node {BAD} is left out of the next attempts for 24 h: {told}" in log
    assert run.cluster.job(run.job_id)["ExcNodeList"] == BAD
    oracles.ended(run, row.reference(), ["node", "completed"], 1)


def test_row_25_a_bad_node_that_the_job_cannot_do_without(row: Row) -> None:
    """The kit sets no list that Slurm could never satisfy: the job starts again with the node."""
    wanted = ("slurm.sbatch_args.nodelist=n[1-3]", "launch.env.FAULTY_ATTEMPT='1'")
    run = row.start(*faulty("wrong", *wanted), pace=AT_ONCE).run
    run.wait()

    log = run.dir.job_log.read_text()
    told = f"node {BAD} cannot be left out, too few other nodes"
    assert f"{told}: preflight: a matrix product" in log
    assert run.cluster.job(run.job_id)["ExcNodeList"] == "(null)"
    oracles.ended(run, row.reference(), ["node", "completed"])
