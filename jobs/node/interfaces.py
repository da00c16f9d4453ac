"""The addresses of this node's network interfaces, IPv4 and IPv6. Standard library only."""

import contextlib
import fcntl
import re
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from ..base import installation
from ..base.errors import UserError
from ..contract.records.nodes import node_name

SIOCGIFADDR = 0x8915  # Source: linux/sockios.h
# Address, index of the interface, prefix length, scope, flags, name of the interface.
# Source: net/ipv6/addrconf.c, if6_seq_show.
IF_INET6 = Path("/proc/net/if_inet6")
# Tentative, deprecated, or in use on another host. Source: linux/if_addr.h.
UNUSABLE = 0x40 | 0x20 | 0x08


def is_reachable(address: str) -> bool:
    """Return whether other hosts could reach this address (not loopback, not link-local)."""
    with contextlib.suppress(ValueError):
        ip = ip_address(address)
        return not (ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast)
    return False


def is_ipv6(address: str) -> bool:
    """Return whether this address is IPv6; False for IPv4 and for a name."""
    return ":" in address


def source_address(peer: str) -> str:
    """Return the address from which this host would reach the address `peer`. Sends no packet.

    Raises: OSError if there is no route.
    """
    family = socket.AF_INET6 if is_ipv6(peer) else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))  # discard
        return str(probe.getsockname()[0])


def is_own(address: str) -> bool:
    """Return whether this host has an interface with this address, also as a second one."""
    family = socket.AF_INET6 if is_ipv6(address) else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))
        return True
    return False


def addresses() -> list[tuple[str, str]]:
    """Return (interface, address) of this node: the first IPv4 of each, then all of IPv6."""
    ipv4 = [(name, own) for _, name in socket.if_nameindex() if (own := _ipv4_address(name))]
    return [*ipv4, *_ipv6_addresses()]


def list_interfaces() -> tuple[str, ...]:
    """Return the interfaces that other nodes could reach, each as `eth0 10.0.0.5`."""
    return tuple(f"{name} {address}" for name, address in addresses() if is_reachable(address))


def interface_of(address: str) -> str | None:
    """Return the name of the network interface that owns an address of this host."""
    wanted = ip_address(address)
    return next((name for name, own in addresses() if ip_address(own) == wanted), None)


def choose(wanted: str, head: str | None = None) -> tuple[str, str]:
    """Return (interface, its address) for launch.interface: that of this name, else by prefix.

    Of several addresses IPv4 comes first, then private before public ones, then the older
    interface. `head`: the first node's address, which has the IP version to choose.

    Raises: UserError if no address fits.
    """
    address_list = addresses()
    usable = [
        (name, address)
        for name, address in address_list
        if is_reachable(address) and (head is None or is_ipv6(address) == is_ipv6(head))
    ]
    named = [pair for pair in usable if pair[0] == wanted]
    # eth10 does not begin with eth1.
    begins = re.compile(re.escape(wanted) + r"(?!\d)" * wanted[-1].isdigit())
    named = named or [pair for pair in usable if begins.match(pair[0])]
    if named:
        return min(named, key=lambda pair: (is_ipv6(pair[1]), ip_address(pair[1]).is_global))
    kind = "address" if head is None else f"{'IPv6' if is_ipv6(head) else 'IPv4'} address"
    listed = ", ".join(f"{name} {address}" for name, address in address_list)
    what = f"launch.interface: {wanted} is no interface with an {kind} that other nodes could reach"
    hint = installation.command("resume", change="launch.interface=...") + " with a name, or the "
    hint += "beginning of a name, that all nodes have; null: the kit chooses"
    raise UserError(f"{node_name()}: {what}; the node has {listed}", hint)


def _ipv4_address(name: str) -> str | None:
    family, request = socket.AF_INET, struct.pack("256s", name.encode()[:15])
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        return socket.inet_ntoa(fcntl.ioctl(probe, SIOCGIFADDR, request)[20:24])
    return None  # an interface without an IPv4 address


def _ipv6_addresses() -> Iterator[tuple[str, str]]:
    """Yield (interface, address) by the interface's index; nothing if the kernel has no IPv6."""
    try:
        lines = [line.split() for line in IF_INET6.read_text(encoding="ascii").splitlines()]
    except OSError:
        return
    for digits, _, _, _, flags, name in sorted(lines, key=lambda line: int(line[1], 16)):
        if not int(flags, 16) & UNUSABLE:
            yield name, str(IPv6Address(bytes.fromhex(digits)))
