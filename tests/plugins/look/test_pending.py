"""Why a job waits, in a sentence for each reason of Slurm, and what ends the wait."""

import pytest

from slurm_job_kit.jobs.plugins.look.pending import ASK_SITE, NEVER_STARTS, RELEASE, explain, remedy

NEVER = ["DependencyNeverSatisfied", "BadConstraints", "PartitionTimeLimit", "InvalidAccount"]
NEVER += ["InvalidQOS", "ReservationDeleted"]


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("Priority", "jobs with a higher priority are before it"),
        ("ReqNodeNotAvail, x", "nodes that it needs are down, drained or reserved (x)"),
        ("ReqNodeNotAvail(Unavailable:n1)", ""),
        ("QOSMaxGRESPerUser", ""),
        ("launch failed requeued held", ""),
    ],
)
def test_a_reason_has_a_sentence_or_none(reason, sentence):
    assert explain(reason) == explain(f"({reason})") == sentence


@pytest.mark.parametrize(
    ("reason", "what"),
    [
        ("Resources", ""),
        ("QOSMaxCpuPerJobLimit", ""),
        ("Moon Phase", ""),
        ("JobHeldUser", RELEASE),
        ("launch failed requeued held", RELEASE),
        ("job_requeued_in_held_state", RELEASE),
        ("JobHeldAdmin", ASK_SITE),
        ("PartitionDown", ASK_SITE),
        *((name, NEVER_STARTS) for name in NEVER),
    ],
)
def test_some_waits_do_not_end_by_themselves(reason, what):
    assert remedy(reason) == what
