"""What is wrong with the keys of a user's script or module: pure functions."""

import os
from collections.abc import Iterator

from ...config.keys import is_dotted
from ...problems import Problem, format_value
from ...spec import Launch


def problems_of(launch: Launch) -> Iterator[Problem]:
    """Yield what is wrong, each at its key."""
    if launch.module is not None and launch.script is not None:
        also = (("launch", "module"),)
        yield Problem(("launch", "script"), "excludes launch.module", "keep one of them", also)
    if launch.module and not is_dotted(launch.module):
        what = f"{format_value(launch.module)} is not a module name"
        hint = "write package.train as for python -m; the key of a file is launch.script"
        yield Problem(("launch", "module"), what, hint)
    if launch.script and launch.script.startswith("-"):
        what, hint = f"{format_value(launch.script)} is not a path", f"write ./{launch.script}"
        yield Problem(("launch", "script"), what, hint)
    is_of_trainer = "is for your own script or module, not for the trainer"
    for index, name in enumerate(launch.inputs):
        path = ("launch", "inputs", index)
        if launch.is_trainer:
            yield Problem(path, is_of_trainer, "leave it out")
        elif not is_inside(name):
            what = f"{format_value(name)} is no path inside of the repository"
            hint = "your script opens an absolute path as it is; leave it out here"
            yield Problem(path, what, hint)
    if launch.is_trainer and launch.stop_signal != "none":
        own = (("launch", "script"), ("launch", "module"))
        what = f"{launch.stop_signal} {is_of_trainer}"
        yield Problem(("launch", "stop_signal"), what, "leave it out", own)


def is_inside(path: str) -> bool:
    """Return whether a relative path leads to something below the folder in which it begins."""
    return not os.path.isabs(path) and os.path.normpath(path).split("/")[0] not in (".", "..")
