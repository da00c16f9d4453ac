"""The command compare on two runs."""

from slurm_job_kit.jobs.__main__ import main
from tests.core.run_files import make_run, write_json


def test_compare_says_bitwise_equal_or_how_two_runs_differ(here, capsys):
    result = {"status": "completed", "global_step": 9, "weights_sha256": "ab"}
    for name in ("a", "b"):
        write_json(make_run(here, name, name).result, result | {"exactness": "bitwise"})
    assert main(["compare", "a", "b"]) == 0
    assert capsys.readouterr().out == "bitwise equal: 9 steps, weights ab\n"
    write_json(make_run(here, "c", "c").result, result | {"exactness": "bitwise", "global_step": 8})
    assert main(["compare", "c", "b"]) == 1
    verdict, difference = capsys.readouterr().out.splitlines()
    assert verdict.startswith("different: ") and difference == "global_step: 8 is not 9"
