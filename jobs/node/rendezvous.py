"""Address and port of the first node, where the agents of an attempt meet.

Standard library only: it runs on the batch host and inside the agents.
"""

import contextlib
import errno
import ipaddress
import signal
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..base.errors import UserError
from ..base.stop_signals import STOP_SIGNALS
from ..contract.records.nodes import AttemptPlan, node_name
from . import interfaces
from .interfaces import is_ipv6, is_reachable

PORTS = range(15000, 32000)  # below those that Linux gives to outgoing connections. Source: ip(7)
PORT_TRIES = 64
# How long an agent tries to reach the first node, and how long one try may take: a switch may fail
# for a while. torchrun would try for its read_timeout, and name no interface.
REACH_LIMIT_S = 60.0
CONNECT_TIMEOUT_S = 5.0
PAUSE_S = 1.0
NodeAddresses = Callable[[Sequence[str]], Mapping[str, str]]


def resolve(host: str) -> list[str]:
    """Return the reachable addresses of a host name, IPv4 first; [] if none."""
    with contextlib.suppress(OSError):
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return sorted(filter(is_reachable, (str(info[4][0]) for info in infos)), key=is_ipv6)
    return []


def head_address(
    resolved: str,
    nodes: Sequence[str],
    interface: str | None = None,
    node_addresses: NodeAddresses = lambda _: {},
) -> tuple[str, str]:
    """Return (the first node's address, how it was found). Must be called on the first node.

    `interface`: launch.interface; its address is taken. Without it, IPv4 comes before IPv6.
    `resolved` is the address from `getent` in the batch script, which drops loopback and
    link-local addresses. It is empty where only such addresses exist: Debian maps a host's own name
    to 127.0.1.1. `node_addresses` asks Slurm for the NodeAddr of nodes, an address or another name;
    then the source address on the route to another node is taken. An address that no interface of
    this node has does not count. Only a job of a single node uses loopback, because no other node
    has to reach it.

    Raises: UserError if there is no such address; it never falls back to localhost. Or if
    the node has no such interface.
    """
    if interface is not None:
        name, address = interfaces.choose(interface)
        return address, f"{name} of {nodes[0]}"
    own = (
        each for each in _candidates(resolved, nodes, node_addresses) if interfaces.is_own(each[0])
    )
    if (first := next(own, None)) is not None:
        return next((each for each in (first, *own) if not is_ipv6(each[0])), first)
    if len(nodes) == 1:
        return "127.0.0.1", "loopback: the job has one node"
    raise UserError(
        f"{nodes[0]}: neither its name nor its NodeAddr in Slurm resolves to an address of it that "
        f"other nodes could reach, and no route leads to {', '.join(nodes[1:])}; the node has "
        f"{', '.join(interfaces.list_interfaces()) or 'loopback only'}",
        "ask the site to put the nodes' addresses into DNS or /etc/hosts, or name a network "
        "interface with launch.interface",
    )


def _candidates(
    resolved: str, nodes: Sequence[str], node_addresses: NodeAddresses
) -> Iterator[tuple[str, str]]:
    """Yield (address, how it was found) of the first node; ask Slurm if its name gives none."""
    known: Mapping[str, str] = {}
    if is_reachable(resolved) and interfaces.is_own(resolved):
        yield resolved, f"address of {nodes[0]}"
    elif len(nodes) > 1:
        known = node_addresses(nodes)
        for address in resolve(known.get(nodes[0], "")):
            yield address, f"NodeAddr of {nodes[0]}"
    for other in nodes[1:]:
        for address in resolve(other) or resolve(known.get(other, "")):
            with contextlib.suppress(OSError):
                source = interfaces.source_address(address)
                if is_reachable(source):
                    yield source, f"source address of {nodes[0]} towards {other}"
                    return


def why_unreachable(plan: AttemptPlan) -> str | None:
    """Return why this node cannot reach the first one at the rendezvous; None if it can.

    A refused connection shows that the first node is there: its store is starting. It takes up to
    REACH_LIMIT_S where nothing answers.
    """
    head, here = plan.head, interfaces.list_interfaces()
    if not is_reachable(head.address):
        return None  # over loopback all agents run on one machine
    problem: str | None
    # Not is_own(): where a node may bind addresses of others (ip_nonlocal_bind), all are its own.
    if (own := interfaces.interface_of(head.address)) is not None and here != head.interfaces:
        problem = f"{own} of this node has this address, too"
    else:
        problem = _connect(head.address, head.port)
    if problem is None:
        return None
    has = [(plan.nodes[0], head.interfaces), ("this node", here)]
    listed = "; ".join(f"{node} has {', '.join(own) or 'loopback only'}" for node, own in has)
    return f"the first node cannot be reached at {head.endpoint} ({head.how}): {problem}; {listed}"


def _connect(host: str, port: int) -> str | None:
    """Return the last error of connections to a port; None as soon as the host answers.

    None, too, where a stop signal waits for the agent, which blocks it until torchrun starts.
    """
    deadline = time.monotonic() + REACH_LIMIT_S
    while not signal.sigpending() & {*STOP_SIGNALS}:
        try:
            socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
            return None
        except ConnectionRefusedError:
            return None
        except OSError as error:
            if time.monotonic() + PAUSE_S > deadline:
                return str(error)
        time.sleep(PAUSE_S)
    return None


def check_private(address: str, is_allowed: bool) -> None:
    """Raises UserError for a public address, unless `is_allowed`.

    torchrun's store, gloo and NCCL accept every client, who could break the job or change its data.
    """
    if ipaddress.ip_address(address).is_global and not is_allowed:
        what = f"the first node's address {address} is public, and any host that can connect to it"
        hint = "if a firewall shields the nodes, set launch.allow_public_rendezvous: true"
        raise UserError(f"{what} can break the job or change what its ranks exchange", hint)


def choose_port(job_id: str, attempt: int) -> int:
    """Return a TCP port for this attempt that is free on this host now.

    The search starts at a hash of job and attempt, so two jobs on one node rarely try the same
    port.

    Raises: UserError if PORT_TRIES ports in a row are taken.
    """
    start = zlib.crc32(f"{job_id}/{attempt}".encode())
    tried = [PORTS[(start + n) % len(PORTS)] for n in range(PORT_TRIES)]
    if (port := next(filter(is_free, tried), None)) is None:
        raise UserError(f"{node_name()}: no free port among {PORT_TRIES} from {tried[0]} on")
    return port


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port, on all interfaces, now.

    torch's TCPStore listens on IPv4 and IPv6 (2.13), and on IPv4 alone where the port of IPv6 is
    taken. So both must be free; a protocol that the kernel has not is not looked at.
    """
    return not any(_is_taken(family, port) for family in (socket.AF_INET, socket.AF_INET6))


def _is_taken(family: socket.AddressFamily, port: int) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As torch's TCPStore does: then connections in TIME_WAIT do not block the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(("", port))
            probe.listen(1)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False
