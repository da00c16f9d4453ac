"""The nodes of an attempt, chosen from those of its job, and where its agents meet."""

import time
from collections.abc import Collection, Sequence

from ...attempt import srun_step
from ...base import installation
from ...base.console import print_line, quantity
from ...contract.records.nodes import Chosen, Head, node_name
from ...contract.rundir import RunDir
from ...contract.spec import Slurm
from ...runs.facts import AttemptFacts
from ...slurm import ask
from ...slurm.cluster import expand_hostlist
from ...slurm.job import plain_job_id, show_job, step_argv
from . import suspects
from .exclude_nodes import counted_since
from .lost_nodes import SilentNodes
from .records import past_of

MORE_LOOKS_EVERY_S = 3.0
HEAD_FOLLOWS = "the agents meet at:"


def is_needed(slurm: Slurm) -> bool:
    """Return whether an attempt may have a part of the job's nodes."""
    return slurm.is_range or slurm.spare_nodes > 0


def choose(run_dir: RunDir, facts: AttemptFacts, job_id: str, nodes: Sequence[str]) -> Chosen:
    """Return the nodes of the next attempt. nodes: that the job had at its start."""
    job = show_job(job_id, ask.PATIENCE_S)
    present = expand_hostlist(job.nodes) if job is not None and job.nodes else list(nodes)
    silent = srun_step.unreachable_nodes(facts, present)
    for _ in range(2):
        if silent:  # perhaps its slurmd is just starting again
            time.sleep(MORE_LOOKS_EVERY_S)
            silent = srun_step.unreachable_nodes(facts, silent)
    if silent:
        print_line(f"no answer from {', '.join(silent)}: left out of the next attempt if possible")
    unfit = suspects.unfit(past_of(facts.attempts), counted_since(facts.spec, facts.submission))
    chosen, head = fittest(facts.spec.slurm, present, silent, unfit), None
    attempt = facts.newest + 1
    if node_name() != chosen[0]:
        head = ask_head(run_dir, job_id, attempt, chosen)
        if head is None:  # then this node takes its place, although it is suspected
            chosen = (nodes[0], *chosen[1:])
    waiting = [node for node in present if node not in (*chosen, *silent)]
    spares = [node for node in waiting if node not in unfit]
    count = f"; {quantity(len(spares), 'spare')} ({', '.join(spares)})" if spares else ""
    notes = [count, *(f"; {node} is left out" for node in waiting if node in unfit)]
    can_lose = max(0, len(chosen) + len(spares) - facts.spec.slurm.fewest_nodes)
    watched = SilentNodes(run_dir, attempt, can_lose)
    places = [f"--{name}={len(chosen)}" for name in ("nodes", "ntasks")]
    # Source: srun(1), --no-kill: else Slurm ends a step of which a node is lost. --overlap: another
    # step may still end there.
    srun_args = [*places, f"--nodelist={','.join(chosen)}", "--overlap", "--no-kill"]
    return Chosen(chosen, head, srun_args, watched.look, "".join(notes))


def fittest(
    slurm: Slurm, nodes: Sequence[str], lost: Collection[str], unfit: Collection[str]
) -> tuple[str, ...]:
    """Choose the nodes of an attempt from those of the job, in their order.

    lost: do not answer. unfit: are left out. Both are taken where there are too few others, lost
    ones last: results depend on the number of nodes.
    """
    num_fit = len({*nodes} - {*unfit, *lost})
    wanted = min(slurm.most_nodes, max(slurm.fewest_nodes, num_fit))
    by_fitness = sorted(nodes, key=lambda node: (node in lost, node in unfit))[:wanted]
    return tuple(node for node in nodes if node in by_fitness)


def ask_head(run_dir: RunDir, job_id: str, attempt: int, nodes: Sequence[str]) -> Head | None:
    """Return where the agents meet, by the first of the nodes; None without its answer."""
    # Where Slurm cannot enter the working directory it takes /tmp, which all users can write.
    words = (str(run_dir.path), str(attempt), *nodes)
    command = installation.python_m("jobs.plugins.nodes.head", *words)
    answer = ask.call(step_argv(plain_job_id(job_id), nodes[0], command, has_terminal=False))
    lines = [] if answer is None or answer.returncode else answer.stdout.splitlines()
    if HEAD_FOLLOWS in lines:  # a site's prolog may print lines before
        lines = lines[lines.index(HEAD_FOLLOWS) + 1 :]
    if len(lines) < 3:
        why = "no answer" if answer is None else answer.stderr.strip()
        print_line(f"{nodes[0]} named no address at which the agents meet: {why}")
        return None
    return Head(lines[0], lines[1], int(lines[2]), tuple(lines[3:]))
