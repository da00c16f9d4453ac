"""The campaign's model: at a harm's word its disk stands still or a rank loops.

One model for all draws, so that one untouched run does for all of them.
"""

from ..faults.broken import Broken
from ..faults.held_up import HeldUp


class AtWill(HeldUp, Broken):
    """HeldUp and Broken at once, with the names of Paced's parameters."""
