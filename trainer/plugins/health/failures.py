"""The errors with which this plugin ends a rank."""

from ...contract import Kind
from ...errors import RankFailure


class Hang(RankFailure):
    """No progress for too long, on the rank that reports it for all."""

    kind = Kind.HANG


class PeerHang(Hang):
    """The same hang, on a rank that refers to the report of another one."""

    caused_by_peer = True


class BadNode(RankFailure):
    """This rank's node failed the preflight; the next attempt may leave it out."""

    kind = Kind.BAD_NODE


class PeerBadNode(RankFailure):
    """The node of another rank failed the preflight."""

    caused_by_peer = True
