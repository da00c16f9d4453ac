"""Address and port of the first node, where the agents of an attempt meet; interfaces of a node.

Standard library only: it runs on the batch host and inside the agents.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from jobs.errors import UserError

EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORTS = range(15000, 32000)
PORT_TRIES = 64
SIOCGIFADDR = 0x8915  # Source: linux/sockios.h
DISCARD_PORT = 9


class RendezvousError(UserError):
    """There is no address or no port at which the agents could meet; the text has a hint."""


def is_reachable(address: str) -> bool:
    """Whether other hosts could reach this IPv4 address (not loopback, not link-local)."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast)


def resolve(host: str) -> list[str]:
    """The reachable IPv4 addresses of a host name, in the resolver's order; [] if none."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(info[4][0]) for info in found if is_reachable(str(info[4][0]))]


def source_address(peer: str) -> str:
    """The IPv4 address from which this host would reach `peer`. Sends no packet.

    Raises: OSError if there is no route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, DISCARD_PORT))
        return str(probe.getsockname()[0])


def head_address(resolved: str, nodes: Sequence[str]) -> tuple[str, str]:
    """(the first node's address, how it was found). Must be called on the first node.

    `resolved` is the address from `getent` in the batch script, which drops loopback and
    link-local addresses. It is empty where only such addresses exist: Debian maps a host's own name
    to 127.0.1.1. Then the source address on the route to another node is taken. Only a job of a
    single node uses loopback, because no other node has to reach it.

    Raises: RendezvousError if there is no such address; it never falls back to localhost.
    """
    if is_reachable(resolved):
        return resolved, f"address of {nodes[0]}"
    for other in nodes[1:]:
        for address in resolve(other):
            try:
                source = source_address(address)
            except OSError:
                continue
            if is_reachable(source):
                return source, f"source address of {nodes[0]} towards {other}"
    if len(nodes) == 1:
        return "127.0.0.1", "loopback: the job has one node"
    raise RendezvousError(
        f"{nodes[0]}: its name resolves to no address that other nodes could reach, and no route "
        f"leads to {', '.join(nodes[1:])}\n"
        "  hint: ask the site to put the nodes' addresses into DNS or /etc/hosts"
    )


def check_private(address: str, is_allowed: bool) -> None:
    """Raises RendezvousError for a public address, unless `is_allowed`.

    torchrun's store listens on every interface, accepts every client and unpickles what clients
    send.
    """
    if ipaddress.ip_address(address).is_global and not is_allowed:
        raise RendezvousError(
            f"the first node's address {address} is public, and any host that can connect to the "
            "rendezvous there can run code in the job\n"
            "  hint: if a firewall shields the nodes, set launch.allow_public_rendezvous: true"
        )


def choose_port(job_id: str, attempt: int) -> int:
    """A TCP port for the rendezvous of this attempt that is free on this host now.

    The search starts at a hash of job and attempt, so two jobs on one node rarely try the same
    port. It leaves out the ephemeral range, where an outgoing connection could take the port before
    torchrun binds it.

    Raises: RendezvousError if PORT_TRIES ports in a row are taken.
    """
    ephemeral = ephemeral_ports()
    candidates = [port for port in PORTS if port not in ephemeral] or list(PORTS)
    start = zlib.crc32(f"{job_id}/{attempt}".encode()) % len(candidates)
    for offset in range(PORT_TRIES):
        port = candidates[(start + offset) % len(candidates)]
        if is_free(port):
            return port
    raise RendezvousError(
        f"{socket.gethostname()}: no free port among {PORT_TRIES} from {candidates[start]} on"
    )


def ephemeral_ports() -> range:
    """The ports that the kernel gives to outgoing connections. Source: ip(7)."""
    try:
        low, high = EPHEMERAL_RANGE.read_text(encoding="ascii").split()
    except OSError:
        return range(32768, 61000)
    return range(int(low), int(high) + 1)


def is_free(port: int) -> bool:
    """Whether a server could listen on this port, on all interfaces, now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As torch's TCPStore does: then connections in TIME_WAIT do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def interface_of(address: str) -> str | None:
    """The name of the network interface that owns an IPv4 address of this host."""
    for _, name in socket.if_nameindex():
        if _interface_address(name) == address:
            return name
    return None


def _interface_address(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", name.encode()[:15])
        try:
            answer = fcntl.ioctl(probe, SIOCGIFADDR, request)
        except OSError:
            return None  # an interface without an IPv4 address
    return socket.inet_ntoa(answer[20:24])
