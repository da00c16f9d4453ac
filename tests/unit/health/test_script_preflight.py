"""The preflight of a user's script: a process of each of two nodes, one of which has a bad disk."""

import os

import pytest

from slurm_job_kit.jobs.node import rendezvous
from slurm_job_kit.jobs.rundir import RunDir, read_json
from slurm_job_kit.trainer.health.script_preflight import disk_problem, main
from tests.unit import forked_ranks


def test_a_folder_that_takes_no_file_is_a_problem(tmp_path):
    (tmp_path / "file").touch()
    assert disk_problem(tmp_path) == "" and os.listdir(tmp_path) == ["file"]
    assert disk_problem(tmp_path / "file") == f"{tmp_path}/file: Not a directory"


def be_node(rank, port, variables):
    os.environ |= variables
    main(f"{rank} 2 0 127.0.0.1 {port}")


def run_on_two_nodes(run, second):
    """The exit codes of the two processes; second: more variables of the second one.

    They are forks of a process that has imported torch, as they are on a node.
    """
    port = rendezvous.choose_port(str(run.path), 1)
    env = {"KIT_ATTEMPT": "1", "KIT_RUN_DIR": str(run.path), "GLOO_SOCKET_IFNAME": "lo"}
    nodes = [env | {"KIT_NODE": "n0"}, env | {"KIT_NODE": "n1"} | second]
    return forked_ranks.run(be_node, [(rank, port, each) for rank, each in enumerate(nodes)])


@pytest.mark.long
@pytest.mark.parametrize("bad", ["TMPDIR", "KIT_RUN_DIR", ""])
def test_the_node_with_a_bad_disk_is_named_even_where_it_cannot_write_its_record(tmp_path, bad):
    run = RunDir(tmp_path / "run")
    run.attempt(1).path.mkdir(parents=True)
    missing = tmp_path / "missing"
    exits = run_on_two_nodes(run, {bad: str(missing)} if bad else {})
    assert exits == ([1, 1] if bad else [0, 0])
    record = read_json(run.attempt(1).rank_error(1))
    if not bad:
        assert record is None
        return
    assert (record["kind"], record["host"]) == ("bad_node", "n1")
    assert f"{missing}" in record["error"] and "No such file" in record["error"]
    assert record.get("reporter") == (0 if bad == "KIT_RUN_DIR" else None)
    peer = read_json(run.attempt(1).rank_error(0))
    assert peer["caused_by_peer"]
