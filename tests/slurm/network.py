"""The machines of the test cluster as the kernel has them: network namespaces and their links.

Each node and the controller get a namespace of their own. The bridge that joins them lies in the
controller's, so that a firewall or Docker's forwarding rules on the host do not apply to it; the
host itself gets one link into it. Each node has two interfaces on that bridge: eth0 with IPv4, for
Slurm and for jobs, and data0 with IPv6, for jobs that ask for it. All names begin with the tag of
the cluster. Every process in these namespaces belongs to the cluster.
"""

import os
import re
import subprocess
import time
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv4Network
from pathlib import Path
from signal import SIGKILL

from .conf import CONTROLLER, Site

_NETNS = Path("/run/netns")
_CGROUP = Path("/sys/fs/cgroup")
_HOST_INDEX = 253


def free_subnet(tag: str) -> IPv4Network:
    """Returns a /24 that no address or route of this machine uses; the first try follows from tag.

    Raises OSError if all candidates are taken.
    """
    text = _ip("-4", "-o", "addr") + _ip("-4", "route", "show", "table", "all")
    addresses = re.findall(r"\b\d+\.\d+\.\d+\.\d+(?:/\d+)?", text)
    taken = [IPv4Network(address, strict=False) for address in addresses]
    for candidate in _candidates(zlib.crc32(tag.encode())):
        if not any(candidate.overlaps(network) for network in taken):
            return candidate
    raise OSError("no free address range for the test cluster: see ip -4 route")


def _candidates(start: int) -> Iterator[IPv4Network]:
    subnets = [*IPv4Network("10.192.0.0/11").subnets(new_prefix=24)]
    return (subnets[(start + offset) % len(subnets)] for offset in range(len(subnets)))


def build(site: Site) -> None:
    """Makes the namespaces and links of `site`; its machines can reach each other after that."""
    bridge_ns, link = site.netns(CONTROLLER), _host_link(site.tag)
    host = [f"netns add {site.netns(machine)}" for machine in site.machines]
    host += [
        f"link add {link} type veth peer name host netns {bridge_ns}",
        f"addr add {site.subnet[_HOST_INDEX]}/24 dev {link}",
        f"link set {link} up",
    ]
    bridge = [
        "link set lo up",
        "link add br0 type bridge forward_delay 0",
        f"addr add {site.address(CONTROLLER)}/24 dev br0",
        "link set host master br0 up",
        "link set br0 up",
    ]
    for node in site.clients:
        for port, interface in _cables(node).items():
            peer = f"peer name {interface} netns {site.netns(node)}"
            bridge.append(f"link add {port} type veth {peer}")
            bridge.append(f"link set {port} master br0 up")
    _ip("-batch", "-", stdin=host)
    _ip("-n", bridge_ns, "-batch", "-", stdin=bridge)
    for node in site.clients:
        up = [
            "link set lo up",
            f"addr add {site.address(node)}/24 dev eth0",
            # nodad: usable at once; no other host can have it.
            f"addr add {site.data_address(node)}/64 dev data0 nodad",
            "link set eth0 up",
            "link set data0 up",
        ]
        _ip("-n", site.netns(node), "-batch", "-", stdin=up)


def set_cable(site: Site, node: str, plugged: bool) -> None:
    """Plugs or pulls the cables of a node at the switch; the node keeps its addresses meanwhile."""
    for port in _cables(node):
        _ip("-n", site.netns(CONTROLLER), "link", "set", port, "up" if plugged else "down")


def remove(tag: str) -> None:
    """Ends every process of the cluster `tag` and deletes its namespaces, links and cgroups.

    Finds everything by name, so it works after a half-failed `build` and twice in a row.
    """
    kill_all(tag)
    # The link first: the kernel deletes it with its namespace, but only some time later.
    if Path("/sys/class/net", _host_link(tag)).exists():
        _ip("link", "del", _host_link(tag))
    for path in _NETNS.glob(f"{tag}-*"):
        _ip("netns", "del", path.name)
    for tree in _cgroups(tag):
        for folder, _, _ in os.walk(tree, topdown=False):
            _remove_cgroup(Path(folder))


def kill_all(
    tag: str, machine: str = "*", spared: Collection[int] = (), timeout_s: float = 20
) -> None:
    """Sends SIGKILL to every process of a machine, by default of all, until there is none.

    The processes of which `spared` has the ids go on.
    """
    deadline = time.monotonic() + timeout_s
    while pids := [pid for pid in processes(tag, machine) if pid not in spared]:
        for pid in pids:
            _kill(pid)
        _thaw(tag, machine)
        if time.monotonic() > deadline:
            raise OSError(f"processes {pids} of {tag}-{machine} survive SIGKILL")
        time.sleep(0.02)


def processes(tag: str, machine: str = "*") -> list[int]:
    """Returns the ids of all processes of a machine, by default of the whole cluster.

    They are found by their network namespace. So a process that left its process group, its session
    or its parent is found, too: daemons, slurmstepd, jobs.
    """
    ours = {_identity(path) for path in _NETNS.glob(f"{tag}-{machine}")}
    # A name without a mounted namespace would match processes of this machine: kill none of them.
    ours -= {None, _identity(Path("/proc/self/ns/net"))}
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if _identity(Path(f"/proc/{pid}/ns/net")) in ours]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, SIGKILL)


def _cgroups(tag: str, machine: str = "*") -> list[Path]:
    name = f"{tag}-{machine}"
    return [*_CGROUP.glob(name), *_CGROUP.glob(f"*/{name}")]


def _thaw(tag: str, machine: str) -> None:
    """Thaws frozen steps: under cgroup v1 a frozen process does not die."""
    for tree in _cgroups(tag, machine):
        for state in tree.rglob("freezer.state"):
            if state.parent != tree:
                with suppress(OSError):  # it ended meanwhile
                    state.write_text("THAWED")


def _remove_cgroup(folder: Path, timeout_s: float = 5) -> None:
    deadline = time.monotonic() + timeout_s
    while folder.exists():
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            # The cgroup stays busy for a moment after its last process died.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _cables(node: str) -> dict[str, str]:
    """The ports of the bridge that a node is connected to, each with the node's interface."""
    return {node: "eth0", f"{node}-data": "data0"}


def _host_link(tag: str) -> str:
    return f"{tag}-host"


def _ip(*args: str, stdin: Iterable[str] = ()) -> str:
    argv = ["ip", *args]
    text = "\n".join(stdin)
    done = subprocess.run(argv, check=False, input=text, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip()}\n{text}")
    return done.stdout
