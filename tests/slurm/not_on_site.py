"""The tests on Slurm that do not run in the second shape of the cluster, each with the reason."""

REASONS = {
    "test_a_day_s_commands_print_what_the_page_shows": (
        "the page shows a site that preempts by partition"
    ),
    "test_row_21_a_disk_is_full_or_a_directory_gone[fill]": (
        "a small disk below the server's folder has other file handles"
    ),
}
