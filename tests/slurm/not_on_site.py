"""The tests on Slurm that do not run in the second shape of the cluster, each with the reason."""

_ROOT_WRAPPER = "its wrapper mounts, which an ordinary user may not"
REASONS = {
    "test_setup_and_interpreter_of_an_image_on_every_node": _ROOT_WRAPPER,
    "test_row_02_without_any_slurm_command_in_the_wrap": _ROOT_WRAPPER,
    "test_a_day_s_commands_print_what_the_page_shows": (
        "the page shows a site that preempts by partition"
    ),
    "test_row_21_a_disk_is_full_or_a_directory_gone[fill]": (
        "a small disk below the server's folder has other file handles"
    ),
}
