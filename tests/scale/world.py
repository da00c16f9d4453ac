"""The events of the simulated cluster, and what they add up to."""

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from slurm_job_kit.jobs.attempt.decision import Action, decide
from slurm_job_kit.jobs.kinds import Kind
from slurm_job_kit.jobs.records.nodes import RankError
from slurm_job_kit.jobs.records.training import Outcome
from slurm_job_kit.jobs.spec import Spec

from .costs import DAY_S, Costs, Rates
from .kit import Decide, End, Run, close_attempt, doors, open_attempt
from .slurm import QueuedJob, Slurm

COSTS, RATES, SPEC = Costs(), Rates(), Spec()


@dataclass
class Sums:
    """Seconds of one run, and counts; each second counts once."""

    useful_s: float = 0.0
    allocated_s: float = 0.0
    queued_s: float = 0.0
    held_s: float = 0.0
    attempts: int = 0
    starts: int = 0
    holds: list[str] = field(default_factory=list)  # the reasons


@dataclass
class Training:
    """One run, its job, and where it is."""

    run: Run
    job: QueuedJob
    work: int | None = None  # seconds of useful steps until it is complete; None: no end
    phase: str = "queued"  # queued, training, closing, held, done
    since: float = 0.0  # when the phase's account began
    epoch: int = 0  # grows with each attempt; an event of an earlier one has no effect
    sums: Sums = field(default_factory=Sums)


class World:
    """A cluster in simulated time. `decide`: in place of the kit's, for a test."""

    def __init__(
        self,
        num_nodes: int,
        sizes: Sequence[int],
        costs: Costs = COSTS,
        rates: Rates = RATES,
        *,
        seed: int = 1,
        spec: Spec = SPEC,
        decide: Decide = decide,
        version: str = "22.05.8",
        work: int | None = None,
    ) -> None:
        self.costs, self.rates, self.decide = costs, rates, decide
        self.random = random.Random(seed)
        self.slurm = Slurm(num_nodes, costs.requeue_s, version)
        self.bad: dict[str, bool] = {}  # node with a failing GPU: does the preflight find it
        self.events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers, self._job_ids = itertools.count(), itertools.count(1)
        self.trainings = [
            Training(Run.of_size(size, spec), self._new_job(size), work) for size in sizes
        ]

    def run(self, seconds: float, faults: Sequence[tuple[float, str, int]] | None = None) -> None:
        """Simulate so many seconds.

        `faults`: (seconds, kind, node) in place of those drawn by the rates.
        """
        with doors(self.slurm) as self._sleeps:
            self._begin(faults)
            while self.events and self.events[0][0] <= seconds:
                self.slurm.now, _, act = heapq.heappop(self.events)
                act()
            self.slurm.now = seconds
            for each in self.trainings:
                self._account(each)
                if each.phase == "training":
                    each.run.saved = max(each.run.saved, self._progress(each)[0])
                each.sums.useful_s = each.run.saved

    def at(self, t: float, act: Callable[[], object]) -> None:
        heapq.heappush(self.events, (t, next(self._numbers), act))

    def fail(self, kind: str, node: str) -> None:
        """A fault on a node: node, network, gpu, crash or preemption."""
        group = [node]
        if kind == "network":
            first = self.slurm.names.index(node)
            group = list(self.slurm.names[first : first + self.rates.cut_nodes])
        if kind in ("node", "network"):
            is_cut = kind == "network"
            self._lose(group, self._expovariate(self.rates.cut_s) if is_cut else None)
        training = self._training_on(node)
        if kind == "gpu" and self.random.random() < self.rates.stays_bad:
            self.bad[node] = self.random.random() >= self.rates.is_hidden
            self.at(self.slurm.now + self.rates.repair_s, partial(self.bad.pop, node, None))
        if training is None or training.phase != "training":
            return
        if kind == "preemption":  # the agents get a signal; the ranks save and end
            training.job.is_preempted = True
            self._stop_work(training, is_saved=True)
            stopped = Outcome("stopped", training.run.step)
            end = End(self.slurm.now, signal="SIGTERM", outcome=stopped)
            self._close_after(training, end, self.costs.stop_s)
        elif kind in ("gpu", "crash"):
            error = RankError(self.slurm.now, 0, node, f"{kind} failure")
            self._end(training, End(self.slurm.now, errors=(error,)), self.costs.crash_s)

    # --- faults -----------------------------------------------------------------------------------

    def _begin(self, faults: Sequence[tuple[float, str, int]] | None) -> None:
        self._schedule()
        if faults is not None:
            for t, kind, number in faults:
                self.at(t, partial(self.fail, kind, self.slurm.names[number]))
            return
        rates, names = self.rates, self.slurm.names
        per_s = rates.per_node_day * len(names) / DAY_S
        shares = {
            "gpu": rates.share_gpu,
            "network": rates.share_network,
            "node": rates.share_node,
            "crash": rates.share_crash,
        }
        for kind, share in shares.items():
            self._repeat(per_s * share, partial(self._fail_anywhere, kind))

    def _fail_anywhere(self, kind: str) -> None:
        self.fail(kind, self.random.choice(self.slurm.names))

    def _repeat(self, per_s: float, act: Callable[[], object]) -> None:
        """Let something happen at random times, so often on average."""
        if per_s <= 0:
            return

        def happen() -> None:
            act()
            self._repeat(per_s, act)

        self.at(self.slurm.now + self._expovariate(1 / per_s), happen)

    def _expovariate(self, mean_s: float) -> float:
        return self.random.expovariate(1 / mean_s)

    def _lose(self, nodes: Sequence[str], seconds: float | None) -> None:
        """Nodes do not answer for a time; the jobs on them fail, with their batch scripts."""
        back = self.slurm.now + (self.rates.repair_s if seconds is None else seconds)
        self.slurm.down.update(dict.fromkeys(nodes, back))
        self.at(back, lambda: self._return(nodes))
        owners = dict.fromkeys(self.slurm.used[n] for n in nodes if n in self.slurm.used)
        for training in [each for each in self.trainings if each.job.job_id in owners]:
            self._lose_nodes_of(training)

    def _return(self, nodes: Sequence[str]) -> None:
        for node in nodes:
            if self.slurm.down.get(node, self.slurm.now + 1) <= self.slurm.now:
                del self.slurm.down[node]
        self._schedule()

    def _lose_nodes_of(self, training: Training) -> None:
        job, slurm = training.job, self.slurm
        lost = tuple(node for node in job.nodes if node in slurm.down)
        start = job.restarts
        self.at(slurm.now + self.costs.slurmd_timeout_s, lambda: self._node_fail(training, start))
        if training.phase != "training":
            return
        if job.nodes[0] in slurm.down:  # the batch script is lost, too: nobody closes the attempt
            self._stop_work(training, is_saved=False)
            training.phase = "lost"
        else:
            self._end(training, self._lost_peer_end(job, lost), self.costs.node_s)

    def _node_fail(self, training: Training, start: int) -> None:
        """Slurm requeues a job that still has a node which is DOWN."""
        job = training.job
        if job.restarts != start or job.state != "RUNNING":
            return
        if any(node in self.slurm.down for node in job.nodes):
            if training.phase == "training":
                self._stop_work(training, is_saved=False)
            self._account(training)
            training.epoch += 1
            self.slurm.requeue(job)
            self._to_queue(training)
        elif training.phase == "lost":  # the network is back in time: the batch script lives
            self._close_after(training, self._lost_peer_end(job), 0.0)

    def _lost_peer_end(self, job: QueuedJob, lost: tuple[str, ...] = ()) -> End:
        peer = RankError(self.slurm.now, 0, job.nodes[0], "lost a peer", caused_by_peer=True)
        return End(self.slurm.now, lost, (peer,))

    # --- a run ------------------------------------------------------------------------------------

    def _new_job(self, size: int) -> QueuedJob:
        job = QueuedJob(str(next(self._job_ids)), size)
        self.slurm.jobs[job.job_id] = job
        return job

    def _training_on(self, node: str) -> Training | None:
        job_id = self.slurm.used.get(node)
        return next((each for each in self.trainings if each.job.job_id == job_id), None)

    def _schedule(self) -> None:
        for training in self.trainings:
            if training.phase == "queued" and self.slurm.start_if_possible(training.job):
                self._account(training)
                training.sums.starts += 1
                self._open(training, self.costs.start_s)
        waiting = [t.job.not_before for t in self.trainings if t.phase == "queued"]
        later = min((t for t in waiting if t > self.slurm.now), default=None)
        if later is not None:
            self.at(later, self._schedule)

    def _open(self, training: Training, start_s: float) -> None:
        job, run, now = training.job, training.run, self.slurm.now
        training.phase = "training"
        training.epoch += 1
        if not open_attempt(run, job, self.slurm):
            self.slurm.release(job, "FAILED")
            self._hold(training)
            return
        training.sums.attempts += 1
        run.first_step_t = now + start_s
        if any(node in self.slurm.down for node in job.nodes):
            self._lose_nodes_of(training)
            return
        bad = [node for node in job.nodes if node in self.bad]
        bad_nodes = [node for node in bad if self.bad[node]]
        if bad_nodes:
            run.first_step_t = None
            errors = [
                RankError(now, 0, n, "preflight: wrong sums", Kind.BAD_NODE) for n in bad_nodes
            ]
            self._end(training, End(now, errors=tuple(errors)), self.costs.preflight_s)
        elif bad:
            again = run.first_step_t + self._expovariate(self.rates.again_s)
            self._at_epoch(training, again, partial(self.fail, "gpu", bad[0]))
        if training.work is not None and training.phase == "training":
            left = training.work - run.saved
            self._at_epoch(
                training, now + start_s + self._running_s(left), partial(self._done, training)
            )

    def _at_epoch(self, training: Training, t: float, act: Callable[[], object]) -> None:
        """Let something happen at a time if the attempt is still the same, in the same phase."""
        before = (training.epoch, training.phase)

        def act_if_same() -> None:
            if (training.epoch, training.phase) == before:
                act()

        self.at(t, act_if_same)

    def _running_s(self, useful_s: float) -> float:
        """The time that so many seconds of useful steps take, with the saves between them."""
        return useful_s + useful_s // self.costs.save_every_s * self.costs.save_stall_s

    def _progress(self, training: Training) -> tuple[int, int]:
        """(useful seconds at this time, those in the newest checkpoint)."""
        run, costs = training.run, self.costs
        began = self.slurm.now if run.first_step_t is None else run.first_step_t
        ran = max(0.0, self.slurm.now - began)
        cycle = costs.save_every_s + costs.save_stall_s
        saves = max(0, int((ran - costs.save_commit_s) // cycle))
        done = ran // cycle * costs.save_every_s + min(ran % cycle, costs.save_every_s)
        return run.loaded + int(done), run.loaded + int(saves * costs.save_every_s)

    def _stop_work(self, training: Training, is_saved: bool) -> None:
        run = training.run
        run.step, saved = self._progress(training)
        run.saved = run.step if is_saved else max(run.saved, saved)

    def _end(self, training: Training, end: End, detect_s: float) -> None:
        """The ranks have failed; the attempt is closed when that is detected."""
        self._stop_work(training, is_saved=False)
        self._close_after(training, end, detect_s)

    def _close_after(self, training: Training, end: End, seconds: float) -> None:
        training.phase = "closing"
        training.epoch += 1
        self._at_epoch(training, self.slurm.now + seconds, partial(self._close, training, end))

    def _close(self, training: Training, end: End) -> None:
        job = training.job
        was_preempted, nodes_down = job.is_preempted, [n for n in job.nodes if n in self.slurm.down]
        if nodes_down and not end.lost:
            end = replace(end, lost=tuple(nodes_down))
        self._sleeps.clear()
        self._account(training)
        is_retry = close_attempt(training.run, job, self.slurm, end, self.decide)
        action = training.run.attempts[-1].decision
        if is_retry:
            retry = partial(self._open, training, self.costs.retry_s)
            self._at_epoch(training, self.slurm.now + sum(self._sleeps), retry)
            return
        if action is Action.WAIT:
            self.slurm.requeue(job)
        if job.state == "PENDING":
            if was_preempted:
                job.not_before = max(job.not_before, self.slurm.now + self.rates.preempted_s)
            self._to_queue(training)
        else:
            self.slurm.release(job, "FAILED")
            self._hold(training)

    def _done(self, training: Training) -> None:
        training.run.saved = training.work or 0
        self._account(training)
        self.slurm.release(training.job, "COMPLETED")
        training.phase = "done"

    def _to_queue(self, training: Training) -> None:
        training.phase = "queued"
        self._schedule()

    def _hold(self, training: Training) -> None:
        """The run stands still until a user resumes it with a new job."""
        training.phase = "held"
        training.sums.holds.append(training.run.attempts[-1].reason)

        def resume() -> None:
            self._account(training)
            training.job = self._new_job(training.job.size)
            self._to_queue(training)

        self.at(self.slurm.now + self.rates.human_s, resume)
        self._schedule()

    def _account(self, training: Training) -> None:
        """Add the time since the last call to the account of the phase."""
        sums, spent = training.sums, self.slurm.now - training.since
        training.since = self.slurm.now
        if training.phase == "queued":
            sums.queued_s += spent
        elif training.phase == "held":
            sums.held_s += spent
        elif training.phase != "done":
            sums.allocated_s += spent


@dataclass(frozen=True)
class Totals:
    """The figures of a simulation; shares are weighted by the number of nodes."""

    goodput: float  # useful / (allocated and held): without the time in the queue
    queued: float  # share of all time
    held: float
    attempts: int
    starts: int
    holds: tuple[str, ...]
    calls: dict[str, int]
    calls_per_s: float  # of slurmctld, without srun


def totals(world: World, seconds: float) -> Totals:
    def weighted(name: str) -> float:
        return float(sum(getattr(t.sums, name) * t.job.size for t in world.trainings))

    useful, allocated, held = weighted("useful_s"), weighted("allocated_s"), weighted("held_s")
    queued = weighted("queued_s")
    everything, calls = allocated + held + queued, dict(world.slurm.calls)
    return Totals(
        goodput=useful / (allocated + held),
        queued=queued / everything,
        held=held / everything,
        attempts=sum(t.sums.attempts for t in world.trainings),
        starts=sum(t.sums.starts for t in world.trainings),
        holds=tuple(reason for t in world.trainings for reason in t.sums.holds),
        calls=calls,
        calls_per_s=sum(n for name, n in calls.items() if name != "srun") / seconds,
    )
