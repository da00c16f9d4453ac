"""The key that a refusal of Slurm is about."""

import pytest

from slurm_job_kit.jobs.slurm import refusals

FAILED = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("message", "key"),
    [
        ("Memory specification can not be satisfied\nRequested node configuration ...", "mem"),
        ("Invalid account or account/partition combination specified", "account"),
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time)", "qos"),
    ],
)
def test_a_message_leads_to_a_key(message, key):
    assert refusals.hint(FAILED + message).startswith(f"slurm.{key}: ")


def test_a_message_of_the_sites_own_plugin_stands_alone():
    assert refusals.hint("sbatch: error: You must give a project code") == ""
