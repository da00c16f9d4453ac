"""Slurm's lists of nodes."""

import re

_PART = re.compile(r"([^,\[]|\[[^\]]*\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")


def expand_hostlist(hostlist: str) -> list[str]:
    """Return the node names in Slurm's host list, such as n[1-3,07] or r[1-2]n[1-4]."""
    names: list[str] = []
    for part in _PART.finditer(hostlist):
        names += _expand(part[0])
    return [] if hostlist == "(null)" else names


def _expand(part: str) -> list[str]:
    brackets = _BRACKETS.search(part)
    if brackets is None:
        return [part]
    head, tail = part[: brackets.start()], part[brackets.end() :]
    numbers = [number for item in brackets[1].split(",") for number in _range(item)]
    return [f"{head}{number}{rest}" for number in numbers for rest in _expand(tail)]


def _range(item: str) -> list[str]:
    first, dash, last = item.partition("-")
    if not dash:
        return [first]
    return [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
