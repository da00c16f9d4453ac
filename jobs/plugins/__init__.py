"""The plugins of the kit: what it can do beside its promise. Each can be deleted.

A plugin is a folder of its name here, in trainer/plugins, or in both, with tests in tests/plugins.
Who deletes a plugin deletes these folders and its line below. The core imports no plugin: it calls
the plugins of this list by jobs/hooks.py and trainer/hooks.py. Standard library only.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Plugin(NamedTuple):
    """What the core finds in a plugin, without an import of it.

    hooks: those of jobs/hooks.py, in jobs/plugins/NAME/hooks.py. trainer_hooks: those of
    trainer/hooks.py, in trainer/plugins/NAME/hooks.py. commands: each with its line of --help; the
    module jobs/plugins/NAME/COMMAND.py has it. It may have the name of a command of the core, in
    whose place it then runs.
    """

    hooks: tuple[str, ...] = ()
    trainer_hooks: tuple[str, ...] = ()
    commands: Mapping[str, str] = {}


# In the order in which their hooks are called.
PLUGINS: dict[str, Plugin] = {
    "sites": Plugin(
        hooks=("layers", "before_queue", "evidence", "decide", "choose_nodes", "successor", "end"),
        commands={"doctor": "show whether runs can be queued and can train here, and what to do"},
    ),
    "scripts": Plugin(
        hooks=(
            *("spec_text", "problems", "prepare_code", "before_queue", "launch_command"),
            *("choose_nodes", "evidence", "decide"),
        )
    ),
    "check": Plugin(hooks=("problems", "before_queue")),
    "weights": Plugin(hooks=("problems",), trainer_hooks=("callbacks",)),
    "sharded": Plugin(hooks=("problems",), trainer_hooks=("parts",)),
    "zoo": Plugin(trainer_hooks=("parts",)),
    "samples": Plugin(trainer_hooks=("parts",)),
    "describe": Plugin(trainer_hooks=("callbacks",)),
    "integrations": Plugin(),
    "changes": Plugin(
        commands={
            "submit": "freeze a spec and run it, on Slurm if there is one",
            "resume": "continue a run that stopped before its end, perhaps changed",
        }
    ),
    "look": Plugin(
        commands={
            "status": "list the runs and their states",
            "why": "show why a run waits, ended or is held, and what to do",
            "logs": "show or follow a rank's logs, rank 0 by default; or the first error",
        }
    ),
    "explain": Plugin(
        commands={"explain": "what a key of the spec means, its value and where that came from"}
    ),
    "shell": Plugin(
        commands={"shell": "print the srun line of a shell on a running rank's node, or run it"}
    ),
    "clean": Plugin(commands={"clean": "list, or delete, old runs that are over and unused code"}),
    "compare": Plugin(commands={"compare": "compare a run bit for bit with a reference run"}),
    "export": Plugin(commands={"export": "write a checkpoint's weights as safetensors"}),
    "sweeps": Plugin(
        hooks=("group",), commands={"sweep": "run many points of one spec, as a job array on Slurm"}
    ),
    "schema": Plugin(),
    "init": Plugin(
        commands={"init": "write a first spec, kit.mk and .gitignore lines into this folder"}
    ),
    "report": Plugin(
        commands={"report": "show where the time of runs went, and write a page with plots"}
    ),
    "rehearse": Plugin(
        commands={"rehearse": "stop, kill and start again any training, and compare how it ends"}
    ),
    "hooks": Plugin(hooks=("beside", "end")),
    "health": Plugin(trainer_hooks=("callbacks",)),
    "trackers": Plugin(hooks=("problems", "end"), trainer_hooks=("callbacks",)),
    "profiler": Plugin(hooks=("problems",), trainer_hooks=("callbacks",)),
    "environment": Plugin(hooks=("prepare_code", "launch_command", "problems")),
    "gpus": Plugin(hooks=("launch_command", "problems"), trainer_hooks=("callbacks",)),
    "fast_start": Plugin(hooks=("launch_command",)),
    "compile_cache": Plugin(trainer_hooks=("callbacks",)),
    "nodes": Plugin(hooks=("problems", "exclude", "choose_nodes", "evidence", "decide")),
}


def missing(plugin: str) -> str:
    """Return what is said of something whose plugin this copy of the kit does not have."""
    return f"needs the plugin {plugin}, which this copy of the kit does not have"
