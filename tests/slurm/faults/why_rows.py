"""What `why` must name for each fault test: one table, and the check of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Nothing:
    """There is nothing that `why` could find in the run, and why not."""

    because: str


# A checkpoint that was put aside ends no attempt: job.log and attempts.jsonl name it.
ASIDE: tuple[str, ...] = ()
# The test -> the causes that the answer must name, all of them; `a|b`: one of the two is enough.
EXPECTED: dict[str, tuple[str, ...] | Nothing] = {
    "test_row_01_time_limit": ("time_limit",),
    "test_row_02_preemption_with_grace": ("preemption",),
    "test_row_02_without_any_slurm_command_in_the_wrap": ("preemption",),
    "test_row_02_preemption_of_an_expedited_job": ("preemption",),
    "test_row_03_preemption_with_the_job_s_own_signal": ("preemption",),
    # Slurm no longer shows which of its requeues it was; the text names both.
    "test_row_04_preemption_without_grace": ("requeued",),
    "test_row_05_preemption_that_cancels_after_a_grace_is_requeued_in_it": ("preemption",),
    "test_row_05_preemption_that_cancels_at_once_goes_on_as_the_successor": ("preemption",),
    "test_row_05_preemption_that_cancels_without_a_successor_keeps_the_checkpoint_for_resume": (
        "cancelled",  # the text names both
    ),
    "test_row_05_cancelled_in_the_end_of_a_cancelling_preemption_stays_cancelled": ("cancelled",),
    "test_row_06_save_longer_than_the_grace": ("requeued|batch_script_killed",),
    "test_row_06_save_longer_than_what_is_left_before_the_time_limit": ("time_limit",),
    "test_row_07_only_one_rank_is_warned": ("manual_stop",),
    "test_row_09_storm_of_signals_to_the_whole_tree": ("manual_stop|time_limit",),
    "test_row_10_signal_in_any_phase": ("manual_stop|time_limit",),
    "test_row_11_scancel_in_a_step": ("cancelled",),
    "test_row_11_scancel_in_a_save": ("cancelled",),
    "test_row_11_scancel_in_a_grace": ("cancelled",),
    "test_row_11_scancel_just_before_our_requeue_lands": ("cancelled",),
    "test_row_11_scancel_just_before_slurms_own_requeue": ("cancelled",),
    "test_row_11_successor_of_a_cancelled_job_ends_without_training": ("cancelled", "preemption"),
    "test_row_11_cancelled_job_takes_its_successor_with_it": ("cancelled",),
    "test_row_12_an_admin_requeues_twice": ("requeued",),
    "test_row_13_requeue_refused": ("preemption", "not_requeued"),
    "test_row_13_job_requeue_0_is_overridden_and_no_requeue_has_a_successor": ("preemption",),
    "test_row_14_sigkill_of_a_rank_is_retried_in_the_allocation": ("process_killed",),
    "test_row_15_sigkill_of": ("process_killed",),
    "test_row_15_sigkill_of_the_batch_process_is_recorded_as_lost": ("batch_script_killed",),
    "test_row_15_killed_batch_shell_goes_on_by_itself_with_a_guard": ("batch_script_killed",),
    "test_row_16_sigkill_in_a_save": ("process_killed",),
    "test_row_16_a_rank_or_node_is_lost_in_a_save": ("process_killed", "node_failure"),
    "test_row_17_a_node_loses_power": ("node_failure",),
    "test_row_17_a_node_of_an_expedited_job_loses_power": ("node_failure",),
    "test_row_18_a_node_loses_its_network": ("node_failure",),
    "test_row_18_a_node_loses_its_network_and_slurm_is_slow_to_notice": ("node_failure",),
    "test_row_18_a_node_loses_its_network_in_a_save": ("node_failure",),
    "test_row_19_slurmctld_is_away_when_the_run_wants_its_requeue": ("time_limit",),
    "test_row_19_slurmctld_goes_away_in_a_preemption": ("preemption|manual_stop",),
    "test_row_20_damaged_checkpoints_and_a_dangling_hint": ASIDE,
    "test_row_20_a_damaged_manifest_and_a_stale_hint": ASIDE,
    "test_row_20_damaged_shards": ASIDE,
    "test_row_21_a_save_meets_an_error[EIO]": ("disk_error",),
    "test_row_21_a_save_meets_an_error[EDQUOT]": ("quota",),
    "test_row_21_a_save_meets_an_error[EROFS]": ("permission",),
    "test_row_21_a_disk_is_full_or_a_directory_gone[fill]": ("batch_script_killed",),
    "test_row_21_a_disk_is_full_or_a_directory_gone[move_away]": ("batch_script_killed",),
    "test_row_21_a_save_meets_an_error_on_one_node[ENOSPC-train.strategy=fsdp]": ("disk_full",),
    "test_row_21_a_save_meets_an_error_on_one_node[EIO-train.strategy=fsdp]": ("disk_error",),
    "test_row_22_hang_of_a_stopped_rank": ("hang",),
    "test_row_22_hang_of_a_rank_in_a_loop": ("hang",),
    "test_row_23_the_rendezvous_port_is_taken": Nothing("the run takes another port at once"),
    "test_row_24_crash_that_repeats_at_the_same_step_is_held": ("user_code", "max_crashes"),
    "test_row_24_a_held_run_is_not_started_again_because_of_its_exit_code": (
        "user_code",
        "max_crashes",
    ),
    "test_row_25_a_bad_node": ("bad_node",),
    "test_row_25_a_bad_node_that_the_job_cannot_do_without": ("bad_node",),
    # Of rows 26 to 28 the test stops the run, which is what delays it.
    "test_row_26_other_world_size_on_resume": ("time_limit",),
    "test_row_26_other_number_of_shards_and_other_strategy_on_resume": ("time_limit",),
    "test_row_27_other_number_of_data_workers": ("time_limit",),
    "test_row_28_config_and_code_change_between_attempts": ("preemption", "time_limit"),
    "test_row_29_an_allocation_fails": ("out_of_memory",),
    "test_row_29_memory_that_is_never_enough_is_held": ("out_of_memory", "max_crashes"),
    "test_row_29_the_kernel_kills_a_rank": ("out_of_memory",),
    "test_row_30_a_second_job_is_refused_while_the_run_is_running": Nothing(
        "the refused job changes nothing in the run directory, and delays nothing"
    ),
    "test_row_30_of_two_queued_jobs_one_runs": Nothing(
        "the refused job changes nothing in the run directory, and delays nothing"
    ),
    "test_row_31_hostile_specs_run_nothing_and_write_nothing": Nothing("there is no run"),
    "test_row_31_spoilt_specs_are_taken_or_refused_in_words": Nothing("there is no run"),
    "test_row_31_hostile_name_and_a_pickle_as_checkpoint": ASIDE,
    "test_row_32_ten_preemptions_in_one_epoch": ("preemption",),
    "test_row_33_the_batch_shell_of_a_cut_off_node_comes_back": ("node_failure",),
    "test_row_33_ranks_that_trained_on_while_the_job_runs_elsewhere_commit_nothing": (
        "node_failure",
    ),
    "test_row_34_suspended_job_is_no_hang": Nothing(
        "Slurm resumes the job, and the kit records nothing"
    ),
    "test_row_35_a_purge_takes_what_the_run_can_do_without": ASIDE,
    "test_row_35_a_purge_takes_what_the_run_cannot_do_without": ("time_limit", "files_missing"),
    "test_row_36_start_up_outlasts_every_slot": ("preemption",),
    "test_row_36_time_limit_shorter_than_the_start_up": ("time_limit", "no_progress"),
    "test_row_37_of_two_resumes_one_queues_and_a_cancel_ends_all_jobs": ("cancelled",),
    "test_row_38_the_slurmstepd_of_one_node_dies": Nothing(
        "the training completes, and the kit ends the job at once"
    ),
    "test_row_39_resume_by_every_name_of_a_run_in_another_root": ("cancelled",),
    "test_row_41_hang_of_a_data_sets_constructor": ("hang",),
    "test_row_41_hang_of_a_rank_that_is_stopped_before_the_first_step": ("hang",),
    "test_row_41_hang_of_a_rank_that_is_stopped_in_its_import": ("hang",),
    "test_row_42_a_node_passes_the_preflight_and_crashes_each_time": ("user_code|unknown",),
    "test_row_42_a_healthy_node_is_accused_once": ("user_code|unknown",),
    "test_row_43_a_failure_follows_the_run": ("user_code|unknown",),
    "test_row_44_a_gpu_fewer_on_one_node": ("bad_node",),
    "test_row_44_a_gpu_fewer_on_all_nodes": ("spec_mistake|bad_node",),
    "test_row_45_a_node_loses_power_and_a_spare_takes_its_place": ("node_failure",),
    "test_row_45_the_first_node_is_left_out": ("user_code|unknown",),
    "test_row_45_the_node_of_the_batch_script_is_lost": ("batch_script_killed",),
    "test_row_46_a_stop_that_meets_a_save": ("preemption",),
    "test_row_47_a_script_that_hangs_on_one_node": ("hang",),
    "test_row_48_a_node_is_lost_and_fewer_go_on": ("preemption",),
}


def expected_of(test: str) -> tuple[str, ...] | Nothing | None:
    """What `why` must name for a test, also one with parameters; None for a test of no row."""
    return EXPECTED.get(test, EXPECTED.get(test.partition("[")[0]))


def named_in(answer: dict[str, Any]) -> list[str]:
    """All causes that an answer of `why --json` names, the first one first."""
    return [answer["cause"], *(each["cause"] for each in answer["delays"])]


def problem_of(test: str, answer: dict[str, Any]) -> str | None:
    """Why the answer does not name the fault of the test, with the whole answer; None if it does.

    The answer of a test with `Nothing` names no cause but the state of the run.
    """
    expected = expected_of(test)
    if expected is None:
        return None
    named = named_in(answer)
    if isinstance(expected, Nothing):
        missing = [f"nothing ({expected.because})"] if named != ["completed"] else []
    else:
        missing = [each for each in expected if not {*each.split("|")} & {*named}]
    if not missing:
        return None
    return f"{test}: why must name {', '.join(missing)}, but named {', '.join(named)}:\n{answer}"
