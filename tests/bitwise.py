"""Compares the ends of two runs bit for bit, for tests: without the plugin compare, too."""

import json

from slurm_job_kit.jobs.base.files import read_json
from slurm_job_kit.jobs.contract.rundir import RunDir

BITS = ("status", "global_step", "weights_sha256", "optimizer_sha256", "best", "metrics")


def differences(run: RunDir, reference: RunDir) -> list[str]:
    """Return how a run ended otherwise than a complete reference; empty if it has the same bits."""
    ours, theirs = _end(run), _end(reference)
    return [f"{key}: {ours[key]} is not {theirs[key]}" for key in ours if ours[key] != theirs[key]]


def _end(run: RunDir) -> dict[str, str]:
    result = read_json(run.result)
    # As text, in which NaN equals NaN, and -0.0 does not equal 0.0.
    end = {key: json.dumps(result.get(key)) for key in BITS}
    for key, value in (("status", "completed"), ("exactness", "bitwise")):
        found = result.get(key, value if key == "exactness" else None)  # of the plugin describe
        end[key] = value if found == value else f"{found} of {run.path}"
    if not result.get("weights_sha256"):
        end["weights_sha256"] = f"none of {run.path}"
    return end | {"metrics.jsonl": run.metrics.read_text(encoding="utf-8")}
