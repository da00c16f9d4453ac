"""Slurm's job states: every one of Slurm's own tables has one place, and a later one none."""

import pytest

from slurm_job_kit.jobs.slurm import job_list, job_state
from slurm_job_kit.jobs.slurm.job import parse_job, request_requeue
from tests.core.fake_slurm import squeue_line

# Source: src/common/slurm_protocol_defs.c, job_state_string, of 22.05.8, 24.11.5 and 26.05.5.
OF_22_05 = (
    *("COMPLETING", "STAGE_OUT", "CONFIGURING", "RESIZING", "REQUEUED", "REQUEUE_FED"),
    *("REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED", "REVOKED", "RESV_DEL_HOLD", "SIGNALING"),
    *("PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT"),
    *("NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"),
)
OF_26_05 = (*OF_22_05, "EXPEDITING")
SHOWN = "   JobState={} Reason=None Dependency=(null)\n   Requeue=1 Restarts={} BatchFlag=1\n"


@pytest.mark.parametrize("word", OF_26_05)
def test_every_state_of_slurm_is_in_one_group(word):
    """REVOKED is in none: another cluster of the federation runs that job, which has not ended."""
    groups = (job_state.WAITING, job_state.ON_NODES, job_state.ENDING, job_state.ENDED)
    assert sum(job_state.read(word) in group for group in groups) == (word != "REVOKED")


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("SIGNALING", "RUNNING"),
        ("RESIZING", "RUNNING"),
        ("STOPPED", "SUSPENDED"),
        ("CANCELLED by 1000", "CANCELLED"),
        ("EXPEDITING", "EXPEDITING"),
        ("HIBERNATING", "HIBERNATING"),  # of a later Slurm
        ("", ""),
    ],
)
def test_a_word_is_read_alike_from_each_command(fake_slurm, word, state):
    assert job_state.read(word) == state
    fake_slurm.answer("squeue", squeue_line("7", word))
    fake_slurm.answer("sacct", f"7|{word}\n")
    jobs = job_list.queue()
    assert jobs is not None and jobs["7"].state == job_list.past_states(["7"])["7"] == state
    if word and " " not in word:
        job = parse_job(SHOWN.format(word, 0))
        assert job is not None and job.state == state


@pytest.mark.parametrize(
    ("word", "restarts", "answer"),
    [
        ("PENDING", 0, "accepted"),
        ("COMPLETING", 1, "accepted"),
        ("EXPEDITING", 0, "accepted"),
        ("REQUEUE_HOLD", 0, "accepted"),
        ("COMPLETING", 0, "refused"),
        ("HIBERNATING", 0, "refused"),
        ("CANCELLED", 1, "refused"),  # a scancel came after the requeue
    ],
)
def test_a_requeue_is_read_back_in_every_state(fake_slurm, word, restarts, answer):
    fake_slurm.answer("scontrol", SHOWN.format(word, restarts))
    assert request_requeue("12").answer.value == answer
