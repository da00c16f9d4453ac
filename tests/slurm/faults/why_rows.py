"""What `why` must name for each fault test: one table, and the check of an answer."""

from typing import Any

# A row, or the beginning of a test's name behind its row -> all causes that the answer must name;
# `a|b`: one of the two is enough. The longest beginning counts.
# None: the kit records nothing, so the answer must name the completed run alone, if there is one.
EXPECTED: dict[str, str | None] = {
    "01": "time_limit",
    "02": "preemption",
    "03": "preemption",
    "04": "requeued",  # Slurm no longer shows which of its requeues it was; the text names both
    "05": "preemption",
    "05_preemption_that_cancels_without_a_successor": "cancelled",  # the text names both
    "05_cancelled": "cancelled",
    "06": "requeued|batch_script_killed",
    "06_save_longer_than_what_is_left": "not_saved",
    "07": "manual_stop",
    "09": "manual_stop|time_limit|not_saved",
    "10": "manual_stop|time_limit",
    "11": "cancelled",
    "11_successor": "cancelled preemption",
    "12": "requeued",
    "13": "preemption",
    "13_requeue_refused": "preemption not_requeued",
    "14": "process_killed",
    "15": "process_killed",
    "15_sigkill_of_the_batch_process": "batch_script_killed",
    "15_killed_batch_shell": "batch_script_killed",
    "16": "process_killed",
    "16_a_rank_or_node": "process_killed node_failure",
    "17": "node_failure",
    "18": "node_failure",
    "19": "time_limit|preemption|manual_stop",
    "20": "",  # a checkpoint that is put aside ends no attempt: job.log and attempts.jsonl name it
    "21_a_save_meets_an_error[EIO": "disk_error",
    "21_a_save_meets_an_error[EDQUOT": "quota",
    "21_a_save_meets_an_error[EROFS": "permission",
    "21_a_save_meets_an_error[ENOSPC": "disk_full",
    "21_a_disk": "batch_script_killed|process_killed",
    "22": "hang",
    "23": None,
    "24": "user_code max_crashes",
    "25": "bad_node",
    "26": "time_limit",  # of rows 26 to 28 the test stops the run, which is what delays it
    "27": "time_limit",
    "28": "preemption time_limit",
    "29": "out_of_memory",
    "29_memory_that_is_never_enough": "out_of_memory max_crashes",
    "30": None,
    "31": "",
    "31_hostile_specs": None,
    "32": "preemption",
    "33": "node_failure",
    "34": None,
    "35": "",
    "35_a_purge_takes_what_the_run_cannot": "time_limit files_missing",
    "36": "preemption",
    "36_time_limit": "time_limit no_progress",
    "37": "cancelled",
    "38": None,
    "39": "cancelled",
    "41": "hang",
    "42": "user_code|unknown",
    "43": "user_code|unknown",
    "44": "bad_node",
    "44_a_gpu_fewer_on_all_nodes": "spec_mistake|bad_node",
    "45": "node_failure",
    "45_the_first_node": "user_code|unknown",
    "45_the_node_of_the_batch_script": "batch_script_killed",
    "46": "preemption",
    "47": "hang",
    "48": "preemption",
}


def problem_of(test: str, answer: dict[str, Any] | None) -> str | None:
    """Why neither `why --json` nor a record names the test's fault; None if one does.

    answer: of `why`, and the records of the attempts; None if the test recorded no run.
    """
    name = test.removeprefix("test_row_")
    key = max((each for each in EXPECTED if name.startswith(each)), key=len, default="")
    expected = EXPECTED.get(key)
    if name == test or (expected is None and answer is None):
        return None
    if answer is None:
        return f"{test}: no run was recorded"
    named = [answer["cause"]]
    for each in answer["attempts"]:
        if each["cause"] != "completed":
            named += filter(None, (each["why"].get("kind"), each["why"].get("budget")))
    if expected is None:
        missing = [] if named == ["completed"] else ["nothing"]
    else:
        missing = [each for each in expected.split() if not {*each.split("|")} & {*named}]
    if not missing:
        return None
    return f"{test}: why must name {', '.join(missing)}, but named {', '.join(named)}:\n{answer}"
