"""The result of a draw: the oracles of the fault table that apply to its harms."""

from itertools import pairwise

from tests import bitwise

from ..faults import oracles
from ..kit import Run
from .draws import Draw
from .harms import FINAL, HARMS
from .sites import SITES
from .victim import Victim

MAX_OTHER_ACCURACY = 0.1  # other sums, after 58 steps


def judged(victim: Victim, draw: Draw, expected: Run) -> tuple[str, str]:
    """(the verdict on a draw, what is wrong)."""
    is_final = draw.blows[-1].harm in FINAL
    end = "cancelled" if is_final else "completed"
    victim.finish()
    run = victim.run
    if run.result().get("status") != end:
        return "revived" if is_final else "lost", f"the run is {run.result()}"
    differences = [] if is_final else bitwise.differences(run.dir, expected.dir)
    if differences and not (SITES[draw.site].is_range and has_same_samples(run, expected)):
        return "divergent", "; ".join(differences)
    causes_are_explained(run, draw, end)
    redoes_no_more_than_it_may(victim, draw)
    oracles.nothing_left(run)
    for name in victim.put_aside:
        assert (run.dir.checkpoints / f"quarantined-{name}").is_dir(), f"{name} was not put aside"
    return "ok", ""


def has_same_samples(run: Run, expected: Run) -> bool:
    """Whether only the number of nodes has changed, or was another one than of the other run.

    Row 48 compares the samples. Here the run must have learned about the same from them.
    """
    result, plain = run.result(), expected.result()
    learned = [each["metrics"]["eval_accuracy"] for each in (result, plain)]
    counts = {len(attempt["nodes"]) for attempt in run.attempts()}
    is_close = abs(learned[0] - learned[1]) < MAX_OTHER_ACCURACY
    return is_close and counts <= {2, 3} and result["global_step"] == plain["global_step"]


def causes_are_explained(run: Run, draw: Draw, end: str) -> None:
    """The cause of each attempt is one that a harm of this draw has; the last one is the run's."""
    known = {cause for blow in draw.blows for cause in HARMS[blow.harm].causes}
    known |= set(SITES[draw.site].causes)
    if sum(bool({*HARMS[blow.harm].causes} & {"crash", "hang"}) for blow in draw.blows) > 1:
        known.add("node")  # the second one in a row on the same node leaves it out
    *causes, last = [attempt["cause"] for attempt in run.attempts()]
    assert last == end and set(causes) <= known, ([*causes, last], sorted(known), end)


def redoes_no_more_than_it_may(victim: Victim, draw: Draw) -> None:
    """L0 if all harms were warnings, otherwise LK; a lost checkpoint adds one interval."""
    run, lost = victim.run, len(victim.put_aside)
    if lost:
        interval = oracles.interval_steps(run)
        trained = [a for a in run.attempts() if a["first_step"] is not None]
        for before, later in pairwise(trained):
            floor = before["last_step"] // interval * interval - (1 + lost) * interval
            assert later["first_step"] - 1 >= floor, (before, later)
    elif all(HARMS[blow.harm].saves for blow in draw.blows):
        oracles.no_step_redone(run)
    else:
        oracles.at_most_one_interval(run)


def rows_of(draw: Draw) -> list[int]:
    """The rows of the fault table of a draw; 8 is the proctrack of rows 1, 2 and 11."""
    rows = {row for blow in draw.blows for row in HARMS[blow.harm].rows}
    return sorted(rows | set(SITES[draw.site].rows) | ({8} if rows & {1, 2, 11} else set()))
