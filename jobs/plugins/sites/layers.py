"""The layers of a spec: one's site file, the files that the spec extends, and the spec itself.

Each lies over those before it: mappings are merged key by key, other values replace those below.
"""

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...config import load, overrides
from ...config.yaml_reader import Document, YamlNode
from ...contract.problems import KeyPath, Place, Problem, SpecError, expand_path
from ...contract.spec import SECTIONS
from ...runs import ownership

EXTENDS = "extends"
SITE, VARIABLE = "~/.config/slurm-job-kit/site.yaml", "KIT_SITE"


def layered(path: Path, own: Document) -> Document:
    """Return the document of a spec over those below it; itself without any. Raises: SpecError."""
    site = _site()
    if site is None and EXTENDS not in own.values:
        return own
    return functools.reduce(_over, _with_extended(path, own, ()), site or Document({}))


def _site() -> Document | None:
    """Return the user's own defaults; None without a site file. Raises: SpecError."""
    default = SITE if os.path.lexists(os.path.expanduser(SITE)) else ""
    if (named := os.environ.get(VARIABLE, default)) in ("", os.devnull):
        return None
    start = Document({EXTENDS: named}, {(): YamlNode(Place("site file"))})
    site = functools.reduce(_over, _with_extended(Path(), start, ()), Document({}))
    if why := ownership.problem_of(Path(expand_path(named))):
        way = f"{VARIABLE}=FILE names one of your own, {VARIABLE}= none"
        hint = f"chmod go-w {named}" if "may write" in why else way
        raise SpecError([Problem((), why, hint, place=start.place(()))])
    if "train" in site.values:
        what, hint = "cannot stand in a site file", "write it into a spec or what it extends"
        raise SpecError([Problem(("train",), what, hint, place=site.place(("train",)))])
    return site


def _with_extended(path: Path, own: Document, above: tuple[str, ...]) -> Iterator[Document]:
    """Yield the files that a file extends, each after those that it extends itself; and the file.

    above: the files that lead to it. Raises: SpecError.
    """
    names = own.values.pop(EXTENDS, None) or []
    chain = (*above, os.path.realpath(path))
    for number, name in enumerate(names if isinstance(names, list) else [names]):
        try:
            target = path.parent / expand_path(str(name))
            if os.path.realpath(target) in chain:
                raise ValueError(f"{target} extends this file, which is a cycle")
            text = load.read_text(target)
        except (ValueError, SpecError) as error:
            what, place = str(error).partition("\n")[0], own.place((EXTENDS, number))
            raise SpecError([Problem((), what, place=place)]) from None
        has_keys = re.search(r"^\s*[^\s#]", text, re.MULTILINE)
        yield from _with_extended(target, load.parse(text if has_keys else "{}", target), chain)
    yield own


def _over(below: Document, above: Document) -> Document:
    """Return `below` with what `above` has."""
    for path, value in _parts(above.values, below.values, ()):
        nodes = {at: node for at, node in above.nodes.items() if at[: len(path)] == path}
        overrides.merge(below, path, Document(value, nodes))
    below.nodes[()] = above.nodes[()]
    below.problems += above.problems
    return below


def _parts(above: Any, below: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield what replaces a value below; a section whose keys are all commented out does not."""
    for name, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(name), dict):
            yield from _parts(value, below[name], (*path, name))
        elif value is not None or path or name not in SECTIONS:
            yield (*path, name), value
