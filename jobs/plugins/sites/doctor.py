"""The command doctor: whether runs can be queued and can train here, one line for each thing.

It asks this host and slurmctld; what a job meets on its nodes, `--probe` shows.
"""

import argparse
import itertools
import os
import resource
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from ... import hooks
from ...base import answer, installation
from ...base.console import print_line, user_name
from ...base.environment import Program
from ...base.errors import UserError
from ...base.gpus import of_machine
from ...commands.queue import test_only
from ...config.load import load
from ...contract.rundir import JOB_LOG, RunDir
from ...contract.spec import Spec
from ...node.interfaces import list_interfaces
from ...runs.lookup import runs_root
from ...slurm import ask, cluster, sbatch
from . import layers, preemption

MAKE = ("", "FLAGS")
LIMIT_S = 6  # of what may hang: torch on a slow disk, slurmctld
MAX_SKEW_S, USUAL_KILL_WAIT_S, MIN_LIMIT = 5, 30, 1024
MIN_BYTES, MIN_FILES = 1 << 30, 10_000
TORCH = (
    "import torch as t; v = t.version; print(t.__version__, v.cuda or v.hip, t.cuda.device_count())"
)
# File systems that one host alone sees. Source: stat(1), -f.
LOCAL = ("ext2/ext3", "xfs", "tmpfs", "overlayfs", "btrfs", "zfs")
# What Slurm does with a job that it preempts. Source: slurm.conf(5), PreemptMode
MODES = {"OFF": "never", "REQUEUE": "requeued", "CANCEL": "cancelled, and a successor continues"}
Line = tuple[str, str, str]  # OK, WARN or FAIL; a name; what was seen, and what to do


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "write your account, partition and interpreter into your site file"
    parser.add_argument("--write-site", action="store_true", help=about)
    about = "queue a job of two nodes for 3 minutes: signals, requeue, shared disk, network"
    parser.add_argument("--probe", action="store_true", help=about)


def command(args: argparse.Namespace) -> int:
    """Print the lines; returns 1 if one is FAIL. Raises: SpecError for a wrong site file."""
    named = os.environ.get(layers.VARIABLE, "").replace(os.devnull, "")
    path = Path(os.path.expanduser(named or layers.SITE))
    if args.write_site:
        if path.exists():
            raise UserError(f"{path} exists", "change it yourself, or delete it first")
        os.environ[layers.VARIABLE] = ""
    spec, settings = defaults(), cluster.settings(LIMIT_S / 2)
    with ThreadPoolExecutor() as pool:
        each = pool.map(lambda check: [*check(spec, settings)], CHECKS)
        lines = [*itertools.chain.from_iterable(each)]
    found = [dict(zip(("state", "name", "seen"), each, strict=True)) for each in lines]
    if not answer.give(checks=found):
        print(*("{state:<4}  {name:<10} {seen}".format(**each) for each in found), sep="\n")
    usable = [seen for *of, seen in lines if of == ["OK", "partition"]]
    if args.write_site and not usable:
        raise UserError(f"{path}: not written, no partition was seen that takes your jobs")
    if args.write_site:
        write_site(path, spec, usable)
        os.environ[layers.VARIABLE] = str(path)
    if args.probe:
        print_line(queue_probe(defaults()))
    return int(any(state == "FAIL" for state, _, _ in lines))


def defaults() -> Spec:
    """Return the spec of a run that states nothing, with the site file and the ranks' Python."""
    return hooks.prepare_code(load(Path("doctor"), (), "name: kit-doctor\n").spec, Path())[0]


def line(is_fine: bool, name: str, seen: str, advice: str, otherwise: str = "WARN") -> Line:
    return ("OK", name, seen) if is_fine else (otherwise, name, f"{seen}; {advice}")


def python(spec: Spec, settings: Mapping[str, str]) -> Iterator[Line]:
    yield "OK", "python", f"{sys.version.split()[0]}, submitit {version('submitit')}"
    if spec.setup or spec.runs_inside:
        yield "WARN", "torch", "not tried: setup lines or a command prefix decide it on a node"
        return
    seen = ask.call([spec.interpreter, "-c", TORCH], limit_s=LIMIT_S)
    if seen is None:
        yield "WARN", "torch", f"{spec.interpreter} does not import it in {LIMIT_S} s"
        return
    if seen.returncode:
        why = seen.stderr.strip().rpartition("\n")[2]
        yield "FAIL", "torch", f"{spec.interpreter}: {why}; activate an environment that has it"
        return
    (number, kind, gpus), here = seen.stdout.split(), of_machine()
    built = "CPUs" if kind == "None" else f"GPUs ({kind}), and sees {gpus} of {here} here"
    is_fit = kind != "None" or not (
        here or (settings and any("gpu" in x.get("TRES", "") for x in cluster.show_partitions()))
    )
    advice = "there are GPUs: install a build for them, or ask nvidia-smi"
    is_fine = is_fit and int(gpus) >= here
    yield line(is_fine, "torch", f"{number} of {spec.interpreter}, for {built}", advice)


def slurm(spec: Spec, settings: Mapping[str, str]) -> Iterator[Line]:
    if settings:
        yield "OK", "slurm", f"{settings['SLURM_VERSION']}, cluster {settings.get('ClusterName')}"
        yield clock(time.time() - float(settings["Time"]), "slurmctld")
    elif cluster.is_installed():
        yield "FAIL", "slurm", "slurmctld does not answer; scontrol ping, or ask your site"
    else:
        seen = cluster.unloaded_reason() or "runs train on this machine"
        is_fine = seen.startswith("runs")
        way = f"module load slurm, or train here by {installation.option('--cluster local')}"
        yield line(is_fine, "slurm", f"no sbatch on PATH; {seen}", way, "FAIL")


def partitions(spec: Spec, settings: Mapping[str, str]) -> Iterator[Line]:
    """Let Slurm say of each partition whether it takes a job of this user."""
    if not settings:
        return
    chosen = (spec.slurm.partition or "").split(",")
    rows = sorted(cluster.show_partitions(), key=lambda row: row["Default"] != "YES")
    for row in rows:
        name = row["PartitionName"]
        job = short_job(spec, partition=name, nodes=1)
        is_fine, answer = test_only(job, RunDir(Path.cwd()), installation.HOME / "slurm/ddp.sbatch")
        seen = f"{name}: {row['TotalNodes']} nodes, time limit {row['MaxTime']}"
        seen += f", grace {row['GraceTime']} s" * (row["GraceTime"] != "0")
        is_mine = name in chosen or (chosen == [""] and row["Default"] == "YES")
        why = " ".join(answer.split()) or "no answer"
        yield line(is_fine is True, "partition", seen, why, "FAIL" if is_mine else "WARN")
    if rows and chosen == [""] and not any(row["Default"] == "YES" for row in rows):
        yield "WARN", "partition", "none is the default; set slurm.partition"
    mine = cluster.show_accounting("assoc", f"user={user_name(os.geteuid())}", "format=QOS")
    every = cluster.show_accounting("qos", "format=Name,GraceTime,MaxJobsPU,MaxSubmitPU")
    for name, grace, *limits in (text.split("|") for text in every.splitlines()):
        if name in mine.replace("\n", ",").split(","):
            most = min((int(each) for each in limits if each), default=0)
            seen = f"{name}: {f'{most} jobs of yours' if most else 'no limit'}, grace {grace}"
            yield line(not 0 < most <= 2, "QOS", seen, "a sweep or a successor needs more")


def preempted(spec: Spec, settings: Mapping[str, str]) -> Iterator[Line]:
    if not settings:
        return
    for site in preemption.query(spec.slurm, settings):
        mode = MODES.get(site.preempt_mode)
        seen = f"{site.name}: {mode or site.preempt_mode}"
        yield line(mode is not None, "preemption", seen, "a job keeps its memory")
    seen = f"JobRequeue={settings.get('JobRequeue')}"
    way = "only jobs that ask are requeued, as the kit's do; --probe tries it"
    yield line(settings.get("JobRequeue") != "0", "requeue", seen, way)
    wait_s = cluster.number(settings.get("KillWait", ""), USUAL_KILL_WAIT_S)
    way = "a save that takes longer is lost: set checkpoint.every_steps"
    yield line(wait_s >= USUAL_KILL_WAIT_S, "KillWait", f"{wait_s} s after a grace", way)


def disk(spec: Spec, settings: Mapping[str, str]) -> Iterator[Line]:
    """Do what the kit does in the folder of all runs, in one that is removed again."""
    root = runs_root(spec.runs_root)
    folder = next(each for each in (root, *root.parents) if each.is_dir())
    doing = "it cannot be written"
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".kit-doctor-") as made:
            file, other, began = Path(made, "a"), Path(made, "b"), time.monotonic()
            with open(file, "wb") as written:
                written.write(bytes(4096))
                os.fsync(written.fileno())
            took_s, ahead_s = time.monotonic() - began, time.time() - file.stat().st_mtime
            doing = "it has no hard links, by which one job of a run excludes another"
            os.link(file, other)
            doing = "a file cannot replace another"
            os.replace(shutil.copy(file, f"{made}/c"), other)  # two links are one file
            keeps = not (Path(made).stat().st_mode ^ folder.stat().st_mode) & stat.S_ISGID
    except OSError as error:
        yield "FAIL", "runs_root", f"{folder}: {doing} ({error.strerror}); set runs_root"
        return
    kind = ask.output(["stat", "-fc", "%T", str(folder)]).strip()
    yield free("runs_root", folder, f", {kind}, fsync in {1000 * took_s:.0f} ms")
    if settings and kind in LOCAL:
        yield "WARN", "runs_root", f"{kind} is of one host; set runs_root if nodes do not see it"
    if not keeps:
        yield "WARN", "runs_root", f"{folder}: new folders do not get its setgid"
    yield clock(ahead_s, "the file server")


def host(spec: Spec, settings: Mapping[str, str]) -> Iterator[Line]:
    """What local runs use, and what jobs inherit from the shell that queues them."""
    yield free("/tmp", Path("/tmp"))
    yield free("/dev/shm", Path("/dev/shm"))
    seen = ", ".join(list_interfaces())
    yield line(bool(seen), "addresses", seen or "loopback only", "no other host can reach this one")
    for flag, limit in (("-n", resource.RLIMIT_NOFILE), ("-u", resource.RLIMIT_NPROC)):
        soft, hard = resource.getrlimit(limit)
        way = f"jobs inherit it; ulimit {flag} {hard} is the most that you may set"
        yield line(not 0 <= soft < MIN_LIMIT, "ulimit", f"{flag} {soft}", way)


def free(name: str, folder: Path, more: str = "") -> Line:
    disk = os.statvfs(folder)
    size, files = disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else MIN_FILES
    seen = f"{folder}: {size / (1 << 30):.1f} GiB free" + f", {files} files" * (files < MIN_FILES)
    return line(size >= MIN_BYTES and files >= MIN_FILES, name, seen + more, "make room")


def clock(ahead_s: float, of: str) -> Line:
    seen = f"this host's is {ahead_s:+.0f} s from that of {of}"
    return line(abs(ahead_s) <= MAX_SKEW_S, "clock", seen, "tell your site")


def short_job(spec: Spec, **changed: Any) -> Spec:
    slurm = replace(spec.slurm, time="00:03:00", signal_lead_s=1, **changed)
    return replace(spec, slurm=slurm)


def write_site(path: Path, spec: Spec, partitions: Sequence[str]) -> None:
    """Write the first partition, the account and the ranks' Python; print the file."""
    user = user_name(os.geteuid())
    account = cluster.show_accounting("user", user, "format=DefaultAccount").split()
    found = {"account": account[:1], "partition": partitions[:1]}
    values = {"slurm": {key: one.split(":")[0] for key, each in found.items() for one in each}}
    values |= {"launch": {"python": spec.launch.python}} if spec.launch.python else {}
    text = yaml.safe_dump(values, sort_keys=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o644, exist_ok=False)
    path.write_text(text)
    print_line(f"wrote {path}:\n{text}")


def queue_probe(spec: Spec) -> str:
    """Queue probe.sh; returns how to read its log. Raises: UserError."""
    root = runs_root(spec.runs_root)
    root.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="probe-", dir=root)
    script = Path(shutil.copy(Path(__file__).with_name("probe.sh"), folder))
    argv = sbatch.sbatch_argv(short_job(spec, nodes=2), RunDir(Path(folder)), script)
    environ = hooks.launch_command(Program.SBATCH, (), os.environ)[1]
    job, answer = sbatch.submit([*argv, spec.interpreter], environ)
    if job is None:
        raise UserError(f"the probe is not queued: {answer}")
    return f"job {job}: tail -F {folder}/{JOB_LOG}"


CHECKS = (python, slurm, partitions, preempted, disk, host)
