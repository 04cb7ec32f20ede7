# SPDX-License-Identifier: Apache-2.0
"""Hosts around a switch, on one machine: network namespaces, a bridge in one of their own, and shaped veth pairs.

```
 h0 [eth0]──tbf──►┐                    ┌──tbf──►[eth0] h1
          ◄──tbf──┤ port0  br0  port1  ├◄──tbf──
                  └────── switch ──────┘
```
Nothing is made in the machine's own network namespace, and no packet leaves the machine.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from netmon.errors import LabError, UnsupportedError

# --- Calls of `ip` and `tc`: a testbed is easiest to read, and to repeat by hand, in their own words.


def run_tool(command: Sequence[str], text: str = "") -> str:
    """Run a command with `text` on its standard input; blocks; returns what it printed. Raises LabError."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UnsupportedError(f"cannot run {command[0]}: it is not installed; install iproute2") from None
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"status {done.returncode}"
        raise LabError(f"cannot build the testbed: `{' '.join(command)}` failed: {reason}")
    return done.stdout


def run_lines(program: str, namespace: str, lines: Sequence[str]) -> None:
    """Run lines of `ip` or `tc` inside a namespace, in one process. Raises LabError naming the line."""
    try:
        run_tool([program, "-netns", namespace, "-batch", "-"], "\n".join(lines) + "\n")
    except LabError as error:
        at = str(error).rpartition("Command failed -:")[2]
        line = lines[int(at) - 1] if at.isdigit() else ""
        raise LabError(f"{error}" + (f" ({program} {line})" if line else "")) from None


def namespaces(prefix: str) -> list[str]:
    """Names of the network namespaces that begin with `prefix`."""
    names = [line.split()[0] for line in run_tool(["ip", "netns", "list"]).splitlines() if line]
    return sorted(name for name in names if name.startswith(prefix))


def processes_in(namespace: str) -> list[int]:
    """Process ids of everything that runs in a namespace."""
    return [int(pid) for pid in run_tool(["ip", "netns", "pids", namespace]).split()]


# --- A limit on the CPU time of processes, by a control group of their own (cgroup v2, or v1).


_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_V1 = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct"))
_PERIOD_US = 20_000  # short: what waits for the next one waits in every period; longer where so few cores are left
_LEAST_US = 1_000  # that the kernel accepts
_WEIGHTS = {"cpu.shares": "29154", "cpu.weight": "2847"}  # of one process of the lab's PRIORITY, by the file for it
_BY_SESSION = Path("/proc/sys/kernel/sched_autogroup_enabled")  # 1: all sessions weigh as much as a new group does
_GROUP_PREFIX = "netmon-lab-"


@dataclass(frozen=True)
class Quota:
    """A limit on a process that has a control group of its own, until it is ended."""

    file: Path
    unlimited: str

    def end(self) -> None:
        """Lift the limit; the process stays in its group."""
        with contextlib.suppress(OSError):  # the group is gone
            self.file.write_text(self.unlimited)


def own_group(run: str, process: int) -> Path:
    """Put a process into a control group of its own, without a limit, as schedulers do, unless it has one.

    That group shows what throttles it. run: the testbed's. Raises UnsupportedError or LabError.
    """
    try:
        group = cpu_root() / f"{_GROUP_PREFIX}{run}-{process}"
    except LookupError as error:
        raise UnsupportedError(f"cannot limit a rank's CPU time: {error}; inject hog instead of quota") from None
    if group.is_dir():
        return group
    try:
        group.mkdir()
        if not (_BY_SESSION.exists() and _BY_SESSION.read_text().strip() == "1"):
            weight = next(name for name in _WEIGHTS if (group / name).exists())
            (group / weight).write_text(_WEIGHTS[weight])
        (group / "cgroup.procs").write_text(str(process))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise LabError(f"cannot put process {process} into {group}: {error.strerror}") from None
    return group


def throttle(run: str, process: int, cores: float) -> Quota:
    """Leave a process so many cores from now on. Raises as own_group does."""
    group = own_group(run, process)
    try:
        return limit(group, cores)
    except OSError as error:
        raise LabError(f"cannot limit process {process} to {cores:g} cores by {group}: {error.strerror}") from None


def limit(group: Path, cores: float) -> Quota:
    """Leave the processes of a group so many cores together, from now on. Raises OSError."""
    period_us = max(_PERIOD_US, round(_LEAST_US / cores))
    quota_us = max(_LEAST_US, round(cores * period_us))
    if (group / "cpu.max").exists():
        file, text, unlimited = group / "cpu.max", f"{quota_us} {period_us}", f"max {period_us}"
    else:
        (group / "cpu.cfs_period_us").write_text(str(period_us))
        file, text, unlimited = group / "cpu.cfs_quota_us", str(quota_us), "-1"
    file.write_text(text)
    return Quota(file, unlimited)


def remove_groups(run: str) -> None:
    """When a run's processes have ended; those that are in their groups still keep them."""
    for root in (*_ROOTS, *_V1):
        for group in root.glob(f"{_GROUP_PREFIX}{run}-*"):
            with contextlib.suppress(OSError):
                group.rmdir()


def cpu_root() -> Path:
    """Where groups that share out CPU time are made. Raises LookupError where the machine has no such place."""
    for root in _ROOTS:
        with contextlib.suppress(OSError):
            if "cpu" in (root / "cgroup.subtree_control").read_text().split():
                return root
    for root in _V1:
        if (root / "cgroup.procs").exists():
            return root
    for root in _ROOTS:
        with contextlib.suppress(OSError):
            (root / "cgroup.subtree_control").write_text("+cpu")
            return root
    raise LookupError("no cgroup here has the cpu controller")


# --- Who owns which testbed, so that what a killed lab left behind can be distinguished from what a living one uses.
#
# A run has a random id. Its namespaces carry the id in their names; its sockets, spools and a lock file lie in
# /run/netmon-lab/<id>. The kernel drops the lock with its owner, however that ended.

PREFIX = "netmon-"
RUNS = Path("/run/netmon-lab")
ETC_NETNS = Path("/etc/netns")
_NAMESPACE = re.compile(PREFIX + r"([0-9a-f]{6})-")


@dataclass(frozen=True)
class Lease:
    """One testbed's name and its folder for things that live as long as the run."""

    run: str
    folder: Path

    def namespace(self, name: str) -> str:
        """The network namespace of a host or of the switch."""
        return f"{PREFIX}{self.run}-{name}"


@contextlib.contextmanager
def leased() -> Iterator[Lease]:
    """A fresh testbed name; whatever carries it is removed at the end, also on failure. Needs root."""
    if os.geteuid() != 0:
        raise UnsupportedError("cannot build the testbed: network namespaces need root; run it with sudo")
    with contextlib.ExitStack() as stack:
        with _registry():
            lease = Lease(run := secrets.token_hex(3), RUNS / run)
            lease.folder.mkdir(mode=0o711)  # agents, which are not root, have their sockets and spools there
            lock = stack.enter_context((lease.folder / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        stack.callback(remove, run)
        yield lease


def abandoned() -> list[str]:
    """Ids of the runs that left something behind and whose owner is gone."""
    with _registry():
        return [run for run in all_runs() if not _alive(run)]


def all_runs() -> list[str]:
    """Ids of all runs that have anything on this machine."""
    folders = {path.name for path in RUNS.glob("*") if path.is_dir()}
    names = [*namespaces(PREFIX), *(path.name for path in ETC_NETNS.glob(f"{PREFIX}*"))]
    return sorted(folders | {match[1] for name in names if (match := _NAMESPACE.match(name))})


def remove(run: str) -> None:
    """End what still runs in a run's namespaces, and remove them and its files. Blocks up to 4 s."""
    names = namespaces(f"{PREFIX}{run}-")
    _end_processes(names)
    for name in names:
        run_tool(["ip", "netns", "delete", name])
    remove_groups(run)
    for folder in ETC_NETNS.glob(f"{PREFIX}{run}-*"):
        shutil.rmtree(folder)
    with contextlib.suppress(OSError):  # somebody else's namespaces may have their files there
        ETC_NETNS.rmdir()
    shutil.rmtree(RUNS / run, ignore_errors=True)


def _end_processes(names: list[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 2
        pids = [pid for name in names for pid in processes_in(name)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while pids and time.monotonic() < deadline:
            time.sleep(0.05)
            pids = [pid for name in names for pid in processes_in(name)]
        if not pids:
            return


def _alive(run: str) -> bool:
    try:
        with (RUNS / run / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextlib.contextmanager
def _registry() -> Iterator[None]:
    """Nobody looks for the dead while somebody is being born: a run's lock file exists a moment before its lock."""
    RUNS.mkdir(exist_ok=True)
    RUNS.chmod(0o711)  # nobody else sees which runs there are
    with (RUNS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# --- The network.

SUBNET = "198.18.0"  # of 198.18.0.0/15, which RFC 2544 sets aside for tests of network devices
INTERFACE = "eth0"

BUFFER_US = 3000
"""How long a port of the switch can send what it buffers.

Shallow-buffered switches share some megabytes between all ports: around a millisecond for a congested one at
10 Gbit/s. Here super-packets come in 128 µs each, and need more. With ResNet-50 at 1 Gbit/s and 3 ms, the iteration
time is flat up to 70 % of cross traffic, where theory has 73 %, and bursts hurt hardly more than a consistent load;
with 1.75 ms it rises from 55 % on, and bursts hurt more; with 1 ms, 40 % of either slow the training by half.
"""
_FEWEST_SUPER_PACKETS = 4  # in the queue of a slow port
_SENDER = 29  # of an Ethernet frame: the last byte of the IPv4 source address

# What a namespace must not inherit from this machine:
# - IPv6: neighbour discovery and multicast reports would add to every count.
# - The congestion control: BBR, say, shares a full link quite differently. CUBIC is Linux's default, but not
#   always allowed to a namespace; Reno always is, and CUBIC behaves like it at round trips this short.
# - How much a socket may have in its host's queue: a NIC's driver keeps that short (byte queue limits), tbf does
#   not. netmon counts before that queue, and would see megabytes arrive in it at the speed of memory.
# - How soon a port may be used again: a thousand flows per second use up all of them within the minute of TIME_WAIT.
_SETTINGS = """set -e
cd /proc/sys/net
for every in ipv6/conf/all ipv6/conf/default; do [ ! -d $every ] || echo 1 > $every/disable_ipv6; done
echo cubic 2>/dev/null > ipv4/tcp_congestion_control || echo reno > ipv4/tcp_congestion_control
echo 65536 > ipv4/tcp_limit_output_bytes
echo 1 > ipv4/tcp_tw_reuse
echo 10000 65000 > ipv4/ip_local_port_range
cat ipv4/tcp_congestion_control
"""


@dataclass(frozen=True)
class Host:
    name: str
    namespace: str
    address: str


@dataclass(frozen=True)
class Network:
    """A testbed that stands. Every port carries `rate_bps` in each direction."""

    lease: Lease
    hosts: tuple[Host, ...]
    rate_bps: int
    congestion_control: str


@contextlib.contextmanager
def network(hosts: int, rate_bps: int, fair: bool = False) -> Iterator[Network]:
    """Build a testbed of `hosts` hosts; it is gone afterwards, with all that runs in it. Raises LabError.

    fair: a port of the switch serves the hosts that send to it in turn, as switches with a queue for each tenant do;
    else it has one queue for all, in which TCP gives more to whoever was there first.
    """
    with leased() as lease:
        names = (f"h{number}" for number in range(hosts))
        built = tuple(Host(name, lease.namespace(name), f"{SUBNET}.{n}") for n, name in enumerate(names, 1))
        congestion_control = _make_namespaces([*(host.namespace for host in built), lease.namespace("switch")])
        _write_names(built)
        _connect(built, lease.namespace("switch"), shaping(rate_bps).super_packet)
        _shape(built, lease.namespace("switch"), rate_bps, fair)
        yield Network(lease, built, rate_bps, congestion_control)


def _make_namespaces(names: list[str]) -> str:
    for name in names:
        run_tool(["ip", "netns", "add", name])
        congestion_control = run_tool(["ip", "netns", "exec", name, "sh", "-s"], _SETTINGS).strip()
    return congestion_control


def _write_names(hosts: tuple[Host, ...]) -> None:
    # `ip netns exec` mounts these over /etc/hosts. The machine's own name has to mean the namespace's address:
    # Horovod resolves it for one of its contexts, whatever interface it is set to use.
    known = "".join(f"{host.address} {host.name}\n" for host in hosts)
    for host in hosts:
        folder = ETC_NETNS / host.namespace
        folder.mkdir(parents=True)
        own = f"{host.address} {socket.gethostname()}\n"
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{own}{known}")


def _connect(hosts: tuple[Host, ...], switch: str, super_packet: int) -> None:
    run_lines("ip", switch, ["link add br0 type bridge stp_state 0 mcast_snooping 0", "link set br0 up"])
    for number, host in enumerate(hosts):
        pair = f"link add {INTERFACE} type veth peer name port{number} netns {switch}"
        address = f"address add {host.address}/24 dev {INTERFACE}"
        size = f"link set {INTERFACE} gso_max_size {super_packet}"
        run_lines("ip", host.namespace, ["link set lo up", pair, size, address, f"link set {INTERFACE} up"])
    run_lines("ip", switch, [f"link set port{number} master br0 up" for number in range(len(hosts))])


@dataclass(frozen=True)
class Shaping:
    super_packet: int
    burst_bytes: int
    port_limit: int  # of the queue of a switch's port
    host_limit: str = "256mb"


def shaping(rate_bps: int) -> Shaping:
    """Limits of tbf for a rate; only the switch may drop.

    A super-packet has to fit into the bucket, or tbf would cut it up and a host's frames would be counted
    differently before and after its queue. A port of the switch buffers BUFFER_US of its rate, the bucket counted: what
    is in the bucket has passed early, as if it were in a longer queue. A host queues without loss: netmon counts
    before that queue and the interface after it, so a drop between the two would stand in the ledger as bytes
    that never were.
    """
    # netmon sees a super-packet at one moment; the kernel's own limit, 64 KB, takes half a millisecond at 1 Gbit/s.
    # Here it is 128 µs of the link, as far as the kernel and this machine's cores allow.
    super_packet, bytes_per_ms = min(65536, max(8192, rate_bps // 8 * 128 // 1_000_000)), rate_bps // 8000
    burst = max(2 * super_packet, bytes_per_ms // 2)
    queue = max(_FEWEST_SUPER_PACKETS * super_packet, bytes_per_ms * BUFFER_US // 1000 - burst)
    return Shaping(super_packet, burst, queue)


def _shape(hosts: tuple[Host, ...], switch: str, rate_bps: int, fair: bool) -> None:
    shape = shaping(rate_bps)
    shaper = f"root tbf rate {rate_bps}bit burst {shape.burst_bytes}"
    for host in hosts:
        run_lines("tc", host.namespace, [f"qdisc add dev {INTERFACE} {shaper} limit {shape.host_limit}"])
    for number in range(len(hosts)):
        one_queue = [f"qdisc add dev port{number} {shaper} limit {shape.port_limit}"]
        run_lines("tc", switch, _in_turn(f"port{number}", len(hosts), rate_bps) if fair else one_queue)


def _in_turn(port: str, hosts: int, rate_bps: int) -> list[str]:
    """A queue for each host that sends, reported by the last byte of its address, which is also its class' number."""
    shape = shaping(rate_bps)
    shaper = f"ceil {rate_bps}bit burst {shape.burst_bytes} cburst {shape.burst_bytes} quantum {shape.super_packet}"
    classes = [
        line
        for number in range(1, hosts + 1)
        for line in (
            f"class add dev {port} parent 1:ffff classid 1:{number:x} htb rate {rate_bps // hosts}bit {shaper}",
            f"qdisc add dev {port} parent 1:{number:x} bfifo limit {shape.port_limit}",
        )
    ]
    return [
        f"qdisc add dev {port} root handle 1: htb",
        f"class add dev {port} parent 1: classid 1:ffff htb rate {rate_bps}bit {shaper}",
        *classes,
        f'filter add dev {port} parent 1: protocol ip bpf bytecode "3,48 0 0 {_SENDER},4 0 0 {1 << 16},22 0 0 0"',
    ]


# --- Ports of a testbed's hosts shared as RDMA shares them: by what the kernel sends, and by what passes it unseen.
#
#  h0 [host0]──┐
#              ├──[eth0]──tbf──► switch
#     [rdma0]──┘
#
# Agents watch host0, on which everybody is but the ranks of a job whose bytes the meter must not see. Both are children
# of one port: whose bytes fill it, or whatever slows it, hurts both.

KERNEL, RDMA = "host0", "rdma0"
_SUBNET = "198.18.1"  # of 198.18.0.0/15, too

# Below 128 bytes of IPv4, to one of these addresses: length at 16, destination's third byte at 32, of the frame.
_SMALL = "6,40 0 0 16,53 3 0 128,48 0 0 32,21 0 1 1,6 0 0 4294967295,6 0 0 0"

# ARP requests and answers for an address only use the interface that has it.
_ARP = "cd /proc/sys/net/ipv4/conf/all && echo 1 > arp_ignore && echo 2 > arp_announce"


def rdma_address(host: int) -> str:
    return f"{_SUBNET}.{host + 1}"


def share_ports(network: Network) -> None:
    """Of a testbed that stands. Raises LabError."""
    shape = shaping(network.rate_bps)
    size = shape.super_packet
    # As RDMA's NICs do, acknowledgements pass what a host has in its queue.
    queues = [
        f"qdisc replace dev {INTERFACE} root handle 1: tbf rate {network.rate_bps}bit burst {shape.burst_bytes} "
        f"limit {shape.host_limit}",
        f"qdisc add dev {INTERFACE} parent 1:1 handle 2: htb default 2",
        *(
            f"class add dev {INTERFACE} parent 2: classid 2:{number} htb rate 10gbit quantum 60000 prio {number}"
            for number in (1, 2)
        ),
        f"qdisc add dev {INTERFACE} parent 2:2 bfifo limit {shape.host_limit}",
        f'filter add dev {INTERFACE} parent 2: protocol ip bpf bytecode "{_SMALL}" flowid 2:1',
    ]
    for number, host in enumerate(network.hosts):
        lines = [f"address delete {host.address}/24 dev {INTERFACE}"]
        for name, address in ((KERNEL, host.address), (RDMA, rdma_address(number))):
            lines += [
                f"link add {name} link {INTERFACE} type macvlan mode bridge",
                f"link set {name} gso_max_size {size}",
                f"address add {address}/24 dev {name}",
                f"link set {name} up",
            ]
        # What is lost there is sent again at once: TCP's 200 ms are none of RDMA's.
        lines.append(f"route change {_SUBNET}.0/24 dev {RDMA} src {rdma_address(number)} rto_min 5ms")
        run_tool(["ip", "netns", "exec", host.namespace, "sh", "-c", _ARP])
        run_lines("ip", host.namespace, lines)
        run_lines("tc", host.namespace, queues)
