# SPDX-License-Identifier: Apache-2.0
"""Who sends gradients to whom: which addresses are one job, and what their pattern is called."""

from collections.abc import Collection, Iterable

Edge = tuple[str, str]
"""From one address to another."""


def strongly_connected(edges: Collection[Edge]) -> list[set[str]]:
    """The largest sets of two or more addresses in which each can reach every other along the edges.

    After an all-reduce everybody has the sum of everybody's gradients, so each rank's reach every other, whatever
    the algorithm. What only receives, or only sends, trains with nobody.
    """
    following, preceding = _neighbours(edges), _neighbours((b, a) for a, b in edges)
    left = {address for edge in edges for address in edge}
    found = []
    while left:
        start = min(left)
        group = _reachable(start, following) & _reachable(start, preceding)
        left -= group
        if len(group) > 1:
            found.append(group)
    return found


def blocks(edges: Collection[Edge]) -> list[set[Edge]]:
    """The edges parted where one address alone holds the rest together (a graph's biconnected components).

    A ring and a clique are one block, every spoke of a star is one, and so is each of two jobs that meet on one host.
    """
    following = _neighbours([*edges, *((b, a) for a, b in edges)])
    for cut in sorted(following):
        rest = {address: others - {cut} for address, others in following.items() if address != cut}
        start = min(rest)
        near = _reachable(start, rest)
        if len(near) < len(rest):
            side = {(a, b) for a, b in edges if a in near or b in near}
            return blocks(side) + blocks(set(edges) - side)
    return [set(edges)]


def pattern_of(edges: Collection[Edge]) -> str:
    """ "ring", "star", "tree", "clique" or "hierarchical"; empty where it is none of them.

    Two ranks are a ring, three around a centre a star. Hierarchical: leaders which form one of the patterns, and
    groups, each with one leader in it, of which at least one is more than the leader and forms one, too.
    """
    return _plain(edges) or ("hierarchical" if _hierarchical(edges) else "")


def ordered(members: Collection[str], edges: Collection[Edge]) -> tuple[str, ...]:
    """The members: of a ring from the smallest address on along the edges, of a star the centre first, else sorted."""
    ascending = tuple(sorted(members, key=_numerically))
    pattern = pattern_of(edges)
    if pattern == "ring":
        following = dict(edges)
        ring = [ascending[0]]
        while len(ring) < len(members):
            ring.append(following[ring[-1]])
        return tuple(ring)
    if pattern == "star":
        neighbours = _neighbours(edges)
        return tuple(sorted(ascending, key=lambda address: len(neighbours[address]) == 1))
    return ascending


def _plain(edges: Collection[Edge]) -> str:
    following = _neighbours(edges)
    size, count = len({address for edge in edges for address in edge}), len(edges)
    both_ways = all((b, a) in edges for a, b in edges)
    if size == count and all(len(following.get(a, ())) == 1 for a, _ in edges) and len(strongly_connected(edges)) == 1:
        return "ring"
    if both_ways and count == 2 * (size - 1):
        return "star" if max(map(len, following.values())) == size - 1 else "tree"
    return "clique" if count == size * (size - 1) else ""


def _hierarchical(edges: Collection[Edge]) -> bool:
    neighbours = _neighbours([*edges, *((b, a) for a, b in edges)])
    degrees = {address: len(others) for address, others in neighbours.items()}
    leaders = {address for address, degree in degrees.items() if degree > min(degrees.values())}
    above = [(a, b) for a, b in edges if a in leaders and b in leaders]
    if len(leaders) < 2 or {a for edge in above for a in edge} != leaders or not _plain(above):
        return False
    below = [edge for edge in edges if edge not in set(above)]
    groups = strongly_connected(below)
    covered = {address for group in groups for address in group}
    one_leader = all(len(group & leaders) == 1 for group in groups)
    named = all(_plain([(a, b) for a, b in below if a in group]) for group in groups)
    return bool(groups) and one_leader and named and covered | leaders == set(degrees)


def _neighbours(edges: Iterable[Edge]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for start, end in edges:
        found.setdefault(start, set()).add(end)
    return found


def _reachable(start: str, following: dict[str, set[str]]) -> set[str]:
    seen, ahead = {start}, [start]
    while ahead:
        new = following.get(ahead.pop(), set()) - seen
        seen |= new
        ahead += new
    return seen


def _numerically(address: str) -> tuple[int, str, list[int]]:
    """IPv4 by its numbers, everything else as text."""
    parts = address.split(".")
    if len(parts) == 4 and all(part.isdigit() for part in parts):
        return 0, "", [int(part) for part in parts]
    return 1, address, []
