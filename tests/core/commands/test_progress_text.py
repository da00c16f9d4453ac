"""The progress of a run as one line of text."""

import json

from slurm_job_kit.jobs.commands.views import words
from slurm_job_kit.jobs.runs.state import read_progress


def test_the_metrics_of_a_script_are_shown_by_their_names(run):
    values = {"step": 7, "total": None, "metrics": {"loss": 0.123456, "bleu": 31.0}}
    run.progress.write_text(json.dumps(values))
    now = read_progress(run)
    assert now is not None
    assert words.format_progress(now) == "step 7/?  loss 0.1235  bleu 31"
    values["metrics"] = {"eval_accuracy": 0.5, "loss": 0.25, "eval_bleu": 3.0}
    run.progress.write_text(json.dumps(values))
    now = read_progress(run)
    assert now is not None
    text = "step 7/?  loss 0.25  held-out accuracy 50.00%  bleu 3"
    assert words.format_progress(now) == text
