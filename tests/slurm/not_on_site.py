"""The tests on Slurm that do not run in the second shape of the cluster, each with the reason."""

_ROOT_WRAPPER = "its wrapper mounts, which an ordinary user may not"
_LATE_SWITCH = "its switch is a new file, which ranks that looked for it see up to 30 s late"
# A defect of the kit: remove these lines with it.
_UNKNOWN_QOS = (
    "slurm.restart: auto reads the QOS of the spec, not the one that the site gives the job, so it"
    " queues no successor where that QOS cancels"
)

REASONS = {
    "test_setup_and_interpreter_of_an_image_on_every_node": _ROOT_WRAPPER,
    "test_row_02_without_any_slurm_command_in_the_wrap": _ROOT_WRAPPER,
    "test_a_day_s_commands_print_what_the_page_shows": (
        "the page shows a site that preempts by partition"
    ),
    "test_row_05_preemption_that_cancels_after_a_grace_is_requeued_in_it": _UNKNOWN_QOS,
    "test_row_05_preemption_that_cancels_at_once_goes_on_as_the_successor": _UNKNOWN_QOS,
    "test_row_05_preemption_that_cancels_without_a_successor_keeps_the_checkpoint_for_resume": (
        _UNKNOWN_QOS
    ),
    "test_row_05_cancelled_in_the_end_of_a_cancelling_preemption_stays_cancelled": _UNKNOWN_QOS,
    "test_row_06_save_longer_than_the_grace": _LATE_SWITCH,
    "test_row_06_save_longer_than_what_is_left_before_the_time_limit": _LATE_SWITCH,
    "test_row_21_a_disk_is_full_or_a_directory_gone": (
        "a small disk below the server's folder has other file handles"
    ),
}
