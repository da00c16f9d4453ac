"""Checks of the section `profile` that types cannot express."""

from collections.abc import Iterator

from ...contract.problems import Problem, format_value
from ...contract.spec import Spec


def problems(spec: Spec) -> Iterator[Problem]:
    steps = spec.profile.steps
    if steps and (len(steps) != 2 or not 1 <= steps[0] <= steps[1]):
        hint = "write the first and the last step to trace, such as [20, 25]; steps count from 1"
        yield Problem(("profile", "steps"), f"{format_value(steps)} is not a range of steps", hint)
