"""The tests on Slurm that do not run in the second shape of the cluster, each with the reason."""

_ROOT_WRAPPER = "its wrapper mounts, which an ordinary user may not"
_LATE_SWITCH = "its switch is a new file, which ranks that looked for it see up to 30 s late"
REASONS = {
    "test_setup_and_interpreter_of_an_image_on_every_node": _ROOT_WRAPPER,
    "test_row_02_without_any_slurm_command_in_the_wrap": _ROOT_WRAPPER,
    "test_a_day_s_commands_print_what_the_page_shows": (
        "the page shows a site that preempts by partition"
    ),
    "test_row_06_save_longer_than_the_grace": _LATE_SWITCH,
    "test_row_06_save_longer_than_what_is_left_before_the_time_limit": _LATE_SWITCH,
    "test_row_21_a_disk_is_full_or_a_directory_gone": (
        "a small disk below the server's folder has other file handles"
    ),
}
