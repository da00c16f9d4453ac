"""Loads one YAML file and its overrides: returns a valid, resolved spec or reports all mistakes.

`jobs.config.yaml_reader` imports PyYAML. Attempts, agents and ranks read spec.json and do not
need it.
"""

import glob
import json
import os
from collections.abc import Sequence
from pathlib import Path

from .. import hooks
from ..base import installation
from ..contract.problems import Place, Problem, SpecError
from ..plugins import PLUGINS, missing
from . import overrides, resolve, validate, yaml_reader
from .loaded import LoadedSpec
from .yaml_reader import Document

__all__ = ["SpecError", "load"]

SWEEP = "sweep"  # a section that is no part of a spec: the plugin sweeps reads it


def load(
    path: Path,
    arguments: Sequence[str] = (),
    typed: str = "",
    is_frozen: bool = False,
    known: Sequence[Problem] = (),
) -> LoadedSpec:
    """Return the spec in a YAML file with `KEY=VALUE` overrides; the last of two equal keys wins.

    typed: the text in place of the file, of a command. is_frozen: the file is that of a run, or of
    a point: it may have a section `sweep`, and no other files lie below it.
    known: problems that do not count. Raises: SpecError; its text lists every mistake.
    """
    text, document = read(path, arguments, typed, is_frozen)
    document.known = known
    if SWEEP in document.values:
        if not is_frozen:
            hint = f"{installation.of_spec('sweep', str(path))} runs them"
            hint = hint if "sweeps" in PLUGINS else f"it {missing('sweeps')}"
            what = "this file describes several runs, and this command takes one"
            document.problems.append(Problem((SWEEP,), what, hint, place=document.place((SWEEP,))))
        del document.values[SWEEP]
    return resolve_document(text, document, arguments)


def read(
    path: Path, arguments: Sequence[str] = (), typed: str = "", is_frozen: bool = False
) -> tuple[str, Document]:
    """Return the text of a spec; and, unchecked, its values with the overrides.

    The text is that of the file; of `typed`, or over other files, it has all the values.
    Raises: SpecError for a file that has no keys.
    """
    text = typed or read_text(path)
    own = parse(text, path, has_lines=not typed)
    document = own if is_frozen else hooks.layers(path, own)
    overrides.apply(document, arguments)
    if typed or document is not own:
        text = yaml_reader.text_of(resolve.expand(document.values, []))
    return text, document


def parse(text: str, path: Path, has_lines: bool = True) -> Document:
    """Return the keys and values of a text; x- names only hold anchors. Raises: SpecError."""
    at = ":{}" if has_lines else ""
    document = yaml_reader.parse(text, lambda line: Place(f"{path}{at.format(line)}", (0, line)))
    if not isinstance(document.values, dict):
        hint = "write keys and values, such as name: first-run"
        nothing = Problem((), "this is not a mapping of keys", hint, place=document.place(()))
        raise SpecError(document.problems or [nothing])
    values = {name: value for name, value in document.values.items() if name[:2] != "x-"}
    document.values = overrides.typed(values, (), document.nodes)
    return document


def resolve_document(text: str, document: Document, arguments: Sequence[str]) -> LoadedSpec:
    """Return the spec of a document; text, arguments: its input. Raises: SpecError."""
    spec = validate.validate(document)
    frozen = list(arguments)
    if spec.train.init_from is not None:
        init_from = json.dumps(spec.train.init_from, ensure_ascii=False)
        frozen.append(f"train.init_from={init_from}")
    return LoadedSpec(spec, text, tuple(frozen), document)


def read_text(path: Path) -> str:
    """Return the text. Raises: SpecError if it is unreadable, over 64 KiB or not UTF-8."""
    try:
        with open(path, "rb") as file:
            data = file.read(yaml_reader.MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        hint = ""
        if os.path.exists(path / "spec.json"):
            hint = f"it is a run, which {installation.command('resume', path.name)} continues"
        elif not isinstance(error, (PermissionError, ValueError)):
            folder = path if os.path.isdir(path) else path.parent
            # Hidden ones are settings of other tools.
            listed = ", ".join(sorted(glob.glob("*.yaml", root_dir=folder))[:20])
            hint = f"{folder} has {listed}" if listed else "configs/ has examples"
        raise _refused(path, f"cannot be read: {reason}", hint) from None
    if len(data) > yaml_reader.MAX_BYTES:
        raise _refused(path, "is larger than 64 KiB", "is it a spec? configs/ has examples")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"is not UTF-8: byte 0x{data[error.start]:02x}"
        raise _refused(f"{path}:{line}", what, "save it as UTF-8; is it a spec at all?") from None


def _refused(where: object, what: str, hint: str) -> SpecError:
    return SpecError([Problem((), what, hint, place=Place(str(where)))])
