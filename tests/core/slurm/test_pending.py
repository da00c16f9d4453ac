"""Why a job waits: a sentence for the reasons that people meet most."""

import pytest

from slurm_job_kit.jobs.slurm.pending import Wait, explain, wait_of

NEVER = ["DependencyNeverSatisfied", "BadConstraints", "PartitionTimeLimit", "InvalidAccount"]
NEVER += ["InvalidQOS", "ReservationDeleted"]


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("Priority", "jobs with a higher priority are before it"),
        (
            "ReqNodeNotAvail, UnavailableNodes:n[1-2]",
            "nodes that it needs are down, drained or reserved (UnavailableNodes:n[1-2])",
        ),
        ("ReqNodeNotAvail(Unavailable:n1)", ""),
        ("QOSMaxGRESPerUser", ""),
        ("launch failed requeued held", ""),
    ],
)
def test_a_reason_has_a_sentence_or_none(reason, sentence):
    assert explain(reason) == explain(f"({reason})") == sentence


@pytest.mark.parametrize(
    ("reason", "wait"),
    [
        ("Resources", Wait.WILL_END),
        ("QOSMaxCpuPerJobLimit", Wait.WILL_END),
        ("Moon Phase", Wait.WILL_END),
        ("JobHeldUser", Wait.UNTIL_RELEASED),
        ("launch failed requeued held", Wait.UNTIL_RELEASED),
        ("job_requeued_in_held_state", Wait.UNTIL_RELEASED),
        ("JobHeldAdmin", Wait.UNTIL_SITE_ACTS),
        ("PartitionDown", Wait.UNTIL_SITE_ACTS),
        *((name, Wait.NEVER_ENDS) for name in NEVER),
    ],
)
def test_some_waits_do_not_end_by_themselves(reason, wait):
    assert wait_of(reason) is wait
