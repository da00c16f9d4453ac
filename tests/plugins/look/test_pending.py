"""Why a job waits, in a sentence for each reason of Slurm that people meet often."""

import pytest

from slurm_job_kit.jobs.plugins.look.pending import explain


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("Priority", "jobs with a higher priority are before it"),
        ("ReqNodeNotAvail, x", "nodes that it needs are down, drained or reserved (x)"),
        ("ReqNodeNotAvail(Unavailable:n1)", ""),
        ("QOSMaxGRESPerUser", ""),
        ("launch failed requeued held", HELD := "Slurm holds it: `scontrol release` frees it"),
        ("job_requeued_in_held_state", HELD),
    ],
)
def test_a_reason_has_a_sentence_or_none(reason, sentence):
    assert explain(reason) == explain(f"({reason})") == sentence
