"""The command completion: a script with which bash or zsh completes the kit's commands.

shtab writes the script from the parsers; argcomplete would start Python at each Tab. Names of runs
are looked up by `find`, in the runs root of the folder in which the user types.
"""

from __future__ import annotations

import argparse
from typing import Any

from .. import installation
from ..errors import UserError
from .parser import COMMANDS, build_parser

# Names and ids of runs and sweeps, one per line; a name with a space is left out. For bash and zsh.
LIST_RUNS = r"""
_kit_list_runs() {
  local root="$KIT_RUNS" top="$PWD"
  if [ -z "$root" ]; then
    while [ -n "$top" ] && [ ! -e "$top/.git" ]; do top="${top%/*}"; done
    root="${top:-$PWD}/runs"
  fi
  (cd -- "$root" 2>/dev/null &&
    find . -mindepth 3 -maxdepth 3 '(' -name spec.json -o -name sweep.json ')' \
      ! -path './.*' ! -path '* *') |
    awk -F/ '{print $2; print $3}' | sort -u
}
"""
BASH = r"""
_kit_runs() { compgen -W "$(_kit_list_runs)" -- "$1"; }
_kit_files() { compgen -f -- "$1"; }
_kit_words() { compgen -W "$(_kit_list_runs) $_kit_keys" -- "$1"; _kit_files "$1"; }
"""
ZSH = r"""
_kit_runs() { compadd -- ${(f)"$(_kit_list_runs)"} }
_kit_words() { compadd -- ${(f)"$(_kit_list_runs)"} ${=_kit_keys}; _files }
"""
# In a clone the user types make. bash splits RUN=x into three words. Other folders keep the
# completion that the package bash-completion has for make.
BASH_MAKE = r"""
_kit_make() {
  local word="${COMP_WORDS[COMP_CWORD]}" name="" found=""
  if [ ! -f jobs/__main__.py ]; then
    declare -F _make >/dev/null && _make "$@"
    return
  fi
  [ "$word" != "=" ] || word=""
  [ "${COMP_WORDS[COMP_CWORD]}" != "=" ] || name="${COMP_WORDS[COMP_CWORD-1]}"
  [ "${COMP_WORDS[COMP_CWORD-1]}" != "=" ] || name="${COMP_WORDS[COMP_CWORD-2]}"
  case "$name" in
    RUN|WITH|FROM) found="$(_kit_runs "$word")" ;;
    CONFIG)
      compopt -o filenames 2>/dev/null # a slash behind a folder, no space
      found="$(_kit_files "$word")" ;;
    SET)
      compopt -o nospace 2>/dev/null
      found="$(compgen -S = -W "$_kit_settable" -- "$word")" ;;
    KEY) found="$(compgen -W "$_kit_keys" -- "$word")" ;;
    "")
      found="$(awk -F: '/^[a-z0-9-]+:.*## / {print $1}' Makefile slurm_job_kit/templates/kit.mk)"
      found="$(compgen -W "$found" -- "$word")" ;;
  esac
  COMPREPLY=($found)
}
complete -o default -F _kit_make make
"""
PREAMBLES = {"bash": LIST_RUNS + BASH, "zsh": LIST_RUNS + ZSH}
# What stands at an argument, by its name in the help.
OF_METAVAR = {
    **dict.fromkeys(("RUN", "REFERENCE", "RUN[@NAME]"), {"bash": "_kit_runs", "zsh": "_kit_runs"}),
    **dict.fromkeys(("CONFIG", "PATH"), {"bash": "_kit_files", "zsh": "_files"}),
    "WORD": {"bash": "_kit_words", "zsh": "_kit_words"},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the name of the shell."""
    help_of_it = "write the output to a file that ~/.bashrc sources, for zsh to _kit in $fpath"
    parser.add_argument("shell", choices=sorted(PREAMBLES), help=help_of_it)


def command(args: argparse.Namespace) -> int:
    """Print the script for a shell; returns 0. Raises: UserError without shtab."""
    from ..config.keys import keys, sections

    try:
        import shtab
    except ImportError:
        raise UserError("the Python package shtab is missing\n  hint: pip install shtab") from None
    parser = build_parser(COMMANDS)
    parser.prog = "kit"
    for subparser in _subparsers(parser):
        for action in subparser._actions:
            if isinstance(action.metavar, str) and action.metavar in OF_METAVAR:
                setattr(action, "complete", OF_METAVAR[action.metavar])  # noqa: B010 - shtab's way
    settable = " ".join(key.dotted for key in keys().values())
    topics = " ".join([*filter(None, sections()), settable])
    names = f"_kit_settable='{settable}'\n_kit_keys='{topics}'"
    print(shtab.complete(parser, args.shell, preamble=names + PREAMBLES[args.shell]))
    if args.shell == "bash" and installation.IS_BY_MAKE:
        print(BASH_MAKE)
    return 0


def _subparsers(parser: argparse.ArgumentParser) -> list[Any]:
    """Return the parsers of the commands."""
    choices_of_actions = (action.choices for action in parser._actions if action.choices)
    return [each for choices in choices_of_actions for each in dict(choices).values()]
