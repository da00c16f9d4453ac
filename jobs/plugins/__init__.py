"""The rooms of the kit: what it can do beside its promise. Each can be deleted.

A room is a folder of its name here, in trainer/rooms, or in both, with tests in tests/rooms. Who
deletes a room deletes these folders and its line below. The core imports no room: it calls the
rooms of this list by jobs/hooks.py and trainer/hooks.py. Standard library only.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Room(NamedTuple):
    """What the core finds in a room, without an import of it.

    hooks: those of jobs/hooks.py, in jobs/rooms/NAME/hooks.py. trainer_hooks: those of
    trainer/hooks.py, in trainer/rooms/NAME/hooks.py. commands: each with its line of --help; the
    module jobs/rooms/NAME/COMMAND.py has it. It may have the name of a command of the core, in
    whose place it then runs.
    """

    hooks: tuple[str, ...] = ()
    trainer_hooks: tuple[str, ...] = ()
    commands: Mapping[str, str] = {}


# In the order in which their hooks are called.
ROOMS: dict[str, Room] = {
    "sites": Room(hooks=("before_queue", "evidence", "decide", "choose_nodes", "successor", "end")),
    "scripts": Room(
        hooks=(
            *("problems", "prepare_code", "before_queue", "launch_command", "choose_nodes"),
            *("evidence", "decide"),
        )
    ),
    "check": Room(hooks=("problems", "before_queue")),
    "weights": Room(hooks=("problems",), trainer_hooks=("callbacks",)),
    "sharded": Room(hooks=("problems",), trainer_hooks=("parts",)),
    "zoo": Room(trainer_hooks=("parts",)),
    "samples": Room(trainer_hooks=("parts",)),
    "describe": Room(trainer_hooks=("callbacks",)),
    "integrations": Room(),
    "changes": Room(
        commands={
            "submit": "freeze a spec and run it, on Slurm if there is one",
            "resume": "continue a run that stopped before its end, perhaps changed",
        }
    ),
    "look": Room(
        commands={
            "status": "list the runs and their states",
            "why": "show why a run waits, ended or is held, and what to do",
            "logs": "show or follow a rank's logs, rank 0 by default; or the first error",
        }
    ),
    "explain": Room(
        commands={"explain": "what a key of the spec means, its value and where that came from"}
    ),
    "shell": Room(
        commands={"shell": "print the srun line of a shell on a running rank's node, or run it"}
    ),
    "clean": Room(commands={"clean": "list, or delete, old runs that are over and unused code"}),
    "compare": Room(commands={"compare": "compare a run bit for bit with a reference run"}),
    "export": Room(commands={"export": "write a checkpoint's weights as safetensors"}),
    "sweeps": Room(
        hooks=("group",), commands={"sweep": "run many points of one spec, as a job array on Slurm"}
    ),
    "schema": Room(),
    "init": Room(
        commands={"init": "write a first spec, kit.mk and .gitignore lines into this folder"}
    ),
    "report": Room(
        commands={"report": "show where the time of runs went, and write a page with plots"}
    ),
    "rehearse": Room(
        commands={"rehearse": "stop, kill and start again any training, and compare how it ends"}
    ),
    "notify": Room(hooks=("end",)),
    "health": Room(trainer_hooks=("callbacks",)),
    "trackers": Room(trainer_hooks=("callbacks",)),
    "profiler": Room(hooks=("problems",), trainer_hooks=("callbacks",)),
    "environment": Room(hooks=("launch_command", "problems")),
    "gpus": Room(hooks=("launch_command", "problems")),
    "fast_start": Room(hooks=("launch_command",)),
    "compile_cache": Room(trainer_hooks=("callbacks",)),
    "nodes": Room(hooks=("problems", "exclude", "choose_nodes", "evidence", "decide")),
}


def missing(room: str) -> str:
    """Return what is said of something whose room this copy of the kit does not have."""
    return f"needs the room {room}, which this copy of the kit does not have"
