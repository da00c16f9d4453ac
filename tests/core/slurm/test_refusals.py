"""Sentences for Slurm's words: the key that a refusal is about, and why a job waits."""

import pytest

from slurm_job_kit.jobs.slurm import refusals
from slurm_job_kit.jobs.slurm.pending import ASK_SITE, NEVER_STARTS, RELEASE, explain, what_ends

FAILED = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("message", "key"),
    [
        ("Memory specification can not be satisfied\nRequested node configuration ...", "mem"),
        ("CPU count per node can not be satisfied", "cpus_per_task"),
        ("Requested node configuration is not available", "nodes or slurm.constraint"),
        ("Invalid feature specification", "nodes or slurm.constraint"),
        ("Invalid generic resource (gres) specification", "gpus_per_node"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "time"),
        ("Invalid account or account/partition combination specified", "account"),
        ("invalid partition specified: x", "partition"),
        ("Invalid qos specification", "qos"),
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "qos",
        ),
    ],
)
def test_a_message_leads_to_a_key(message, key):
    assert refusals.hint(FAILED + message).startswith(f"slurm.{key}: ")


def test_a_message_of_the_sites_own_plugin_stands_alone():
    assert refusals.hint("sbatch: error: You must give a project code") == ""


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
    assert what_ends(reason) == what
