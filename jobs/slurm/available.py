"""Compares the names and the number of nodes in a spec with what a site has.

A name that the site does not list is no refusal by itself: a plugin of the site may replace it at
submit. `jobs.commands.queue` asks `sbatch --test-only` before it refuses a job. Where Slurm does
not answer, nothing is found. Standard library only.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Iterator, Sequence

from ..problems import Problem, format_value
from ..spec import Slurm
from . import site
from .site import Partition

# Another cluster's names are not known here.
_OTHER_CLUSTER = ("clusters", "cluster")


def problems(requested: Slurm) -> list[Problem]:
    """Return what the spec names and the site does not list, with a hint that lists what it has."""
    if any(name in requested.sbatch_args for name in _OTHER_CLUSTER):
        return []
    return [*_partitions(requested), *_accounts(requested), *_constraint(requested)]


def _problem(key: str, what: str, hint: str) -> Problem:
    return Problem(("slurm", key), what, hint)


def _partitions(requested: Slurm) -> Iterator[Problem]:
    known = {partition.name: partition for partition in site.all_partitions()}
    names = requested.partition.split(",") if requested.partition else []
    chosen = [known[name] for name in names if name in known]
    if not names:
        chosen = [partition for partition in known.values() if partition.is_default]
    listed = f"this site has {_listed(map(_described, known.values()))}"
    if known and not names and not chosen:
        yield _problem("partition", "is not set, and this site has no default partition", listed)
    for name in names if known else ():
        if name not in known:
            yield _problem("partition", f"there is no partition {format_value(name)}", listed)
    yield from _closed_partitions(requested, chosen)
    most = max((partition.nodes for partition in chosen), default=0)
    if 0 < most < (needed := requested.fewest_job_nodes):
        where = " or ".join(partition.name for partition in chosen)
        hint = f"write {most} or fewer; {listed}"
        yield _problem("nodes", f"{needed} is more than partition {where} has", hint)


def _closed_partitions(requested: Slurm, chosen: Sequence[Partition]) -> Iterator[Problem]:
    """Compare account and QOS with what the partitions take; one that takes them is enough."""
    name = " or ".join(partition.name for partition in chosen)
    for key, lists in (
        ("account", [partition.allow_accounts for partition in chosen]),
        ("qos", [partition.allow_qos for partition in chosen]),
    ):
        allowed = {each for names in lists for each in names}
        wanted = getattr(requested, key)
        if not allowed or not all(lists) or allowed & {*(wanted or "").lower().split(",")}:
            continue
        hint = f"partition {name} takes jobs of {key} {_listed(allowed)} only; " + _yours(key)
        if wanted:
            what = f"{format_value(wanted)} may not be used in partition {name}"
            yield _problem(key, what, hint)
        else:
            yield _problem("partition", f"{name} is not open to every {key}", hint)


def _yours(key: str) -> str:
    user = pwd.getpwuid(os.getuid()).pw_name
    rows = site.associations(user)
    names = {account for account, _ in rows}
    if key == "qos":
        names = {each for _, allowed in rows for each in allowed}
    return f"{user} has {_listed(names)}" if names else f"ask the site for another {key}"


def _described(partition: Partition) -> str:
    return f"{partition.name} ({partition.nodes} nodes)"


def _accounts(requested: Slurm) -> Iterator[Problem]:
    """Compare account and QOS with the user's own in the accounting database, if there is one."""
    if not (requested.account or requested.qos):
        return
    user = pwd.getpwuid(os.getuid()).pw_name
    rows = site.associations(user)
    accounts = {account for account, _ in rows}
    account = requested.account and requested.account.lower()  # Slurm's are in lower case
    if account and accounts and account not in accounts:
        hint = f"the accounts of {user} are {_listed(accounts)}"
        yield _problem("account", f"{user} has no account {format_value(requested.account)}", hint)
        account = None
    allowed = {name for of, names in rows if account in (None, of) for name in names}
    for qos in requested.qos.split(",") if requested.qos and allowed else ():  # 24.11: a list
        if qos.lower() not in allowed:
            hint = f"{user} may use {_listed(allowed)}"
            yield _problem("qos", f"{user} may not use the QOS {format_value(qos)}", hint)


def _constraint(requested: Slurm) -> Iterator[Problem]:
    if not requested.constraint:
        return
    known = site.features(requested.partition)
    if known is None:
        return
    words = re.findall(r"[^\s&|,*()\[\]!]+", requested.constraint)
    for word in dict.fromkeys(words):
        if word not in known and not word.isdigit():  # rack1*2
            hint = f"its features are {_listed(known)}" if known else "its nodes have no features"
            where = f"partition {requested.partition}" if requested.partition else "this site"
            yield _problem("constraint", f"no node of {where} has the feature {word}", hint)


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - 30} more" if len(ordered) > 30 else ""
    return ", ".join(ordered[:30]) + more
