"""A spec that was loaded, with the input that it was loaded from."""

from dataclasses import dataclass, field

from ..contract.spec import Spec
from .yaml_reader import Document


@dataclass(frozen=True)
class LoadedSpec:
    """A valid spec, and the input that gives the same spec on any machine and from any directory.

    text: the user's file, unchanged.
    overrides: `KEY=VALUE`, in order; with the absolute path of `train.init_from`.
    document: the parsed input, with the line of each key.
    """

    spec: Spec
    text: str
    overrides: tuple[str, ...] = ()
    document: Document = field(default_factory=Document, compare=False, repr=False)
