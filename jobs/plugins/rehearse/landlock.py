"""Lets new processes write below some folders only, by whatever program: Landlock of the kernel.

Source: linux/landlock.h, prctl(2). All kinds of machines have these numbers.
"""

import ctypes
import os
import struct
from collections.abc import Callable, Iterable

CREATE_RULESET, ADD_RULE, RESTRICT_SELF, NO_NEW_PRIVILEGES = 444, 445, 446, 38
ASK_VERSION, PATH_BENEATH = 1, 1
TRUNCATE = 1 << 14  # since version 3
IN_FILES = 1 << 1 | TRUNCATE  # open to write
CHANGES = IN_FILES | 0x3FF0  # make, remove, and since version 2 move to another folder


def restriction(folders: Iterable[str]) -> Callable[[], None] | None:
    """Return what a new process calls to write below `folders` only; None without Landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, 0, ASK_VERSION)
    if version < 2:  # the first one lets nothing move to another folder
        return None
    held = CHANGES if version > 2 else CHANGES & ~TRUNCATE
    ruleset = libc.syscall(CREATE_RULESET, struct.pack("=Q", held), 8, 0)
    for folder in folders:
        place = os.open(folder, os.O_PATH)
        rights = held if os.path.isdir(folder) else held & IN_FILES
        libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", rights, place), 0)
        os.close(place)

    def restrict() -> None:
        libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        if libc.syscall(RESTRICT_SELF, ruleset, 0):
            raise OSError(ctypes.get_errno(), "Landlock")

    return restrict
