# SPDX-License-Identifier: Apache-2.0
"""What the pairs of addresses that exchange something look like together: who reaches whom, rings, stars and others."""

from collections.abc import Collection, Iterable, Mapping

from netmon.dl.inference.bursts import Edge


def strongly_connected(edges: Collection[Edge]) -> list[set[str]]:
    """The largest sets of two or more addresses in which each can reach every other along the edges.

    After an all-reduce everybody has the sum of everybody's gradients, so each rank's reach every other, whatever
    the algorithm. What only receives, or only sends, trains with nobody.
    """
    return [group for group in _components(_neighbours(edges)) if len(group) > 1]


def _components(following: Mapping[str, Collection[str]]) -> list[set[str]]:
    """Strongly connected components, by their least address; one pass over the edges (Tarjan 1972)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    found = []
    for root in following:
        if root in number:
            continue
        number[root] = lowest[root] = len(number)
        path.append(root)
        on_path.add(root)
        ahead = [(root, iter(following[root]))]
        while ahead:
            here, rest = ahead[-1]
            there = next(rest, None)
            if there is None:
                ahead.pop()
                if ahead:
                    before = ahead[-1][0]
                    lowest[before] = min(lowest[before], lowest[here])
                if lowest[here] == number[here]:
                    group = {path.pop()}
                    while here not in group:
                        group.add(path.pop())
                    on_path -= group
                    found.append(group)
            elif there not in number:
                number[there] = lowest[there] = len(number)
                path.append(there)
                on_path.add(there)
                ahead.append((there, iter(following.get(there, ()))))
            elif there in on_path:
                lowest[here] = min(lowest[here], number[there])
    return sorted(found, key=min)


def blocks(edges: Collection[Edge]) -> list[set[Edge]]:
    """The edges parted where one address alone holds the rest together (a graph's biconnected components).

    A ring and a clique are one block, every spoke of a star is one, and so is each of two jobs that meet on one host.
    By their least edge; one pass over the edges (Hopcroft and Tarjan 1973).
    """
    neighbours = _neighbours([*edges, *((b, a) for a, b in edges)])
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[Edge] = []
    block_of: dict[frozenset[str], int] = {}
    count = 0
    for root in sorted(neighbours):
        if root in number:
            continue
        number[root] = lowest[root] = len(number)
        ahead = [(root, "", iter(neighbours[root]))]
        while ahead:
            here, before, rest = ahead[-1]
            there = next(rest, None)
            if there is None:
                ahead.pop()
                if not ahead:
                    continue
                lowest[before] = min(lowest[before], lowest[here])
                if lowest[here] >= number[before]:
                    while True:
                        edge = path.pop()
                        block_of[frozenset(edge)] = count
                        if edge == (before, here):
                            break
                    count += 1
            elif there not in number:
                number[there] = lowest[there] = len(number)
                path.append((here, there))
                ahead.append((there, here, iter(neighbours[there])))
            elif there != before and number[there] < number[here]:
                path.append((here, there))
                lowest[here] = min(lowest[here], number[there])
    found: list[set[Edge]] = [set() for _ in range(count)]
    for edge in edges:
        found[block_of[frozenset(edge)]].add(edge)
    return sorted(found, key=min)


def pattern_of(edges: Collection[Edge]) -> str:
    """ "ring", "star", "tree", "clique" or "hierarchical"; empty where it is none of them.

    Two ranks are a ring, three around a centre a star. Hierarchical: leaders which form one of the patterns, and
    groups, each with one leader in it, of which at least one is more than the leader and forms one, too.
    """
    return _plain(edges) or ("hierarchical" if _hierarchical(edges) else "")


def connected_pairs(pairs: Iterable[frozenset[str]]) -> list[set[str]]:
    """Members that are connected by the pairs."""
    return strongly_connected([(a, b) for pair in pairs for a in pair for b in pair if a != b])


def ordered(members: Collection[str], edges: Collection[Edge]) -> tuple[str, ...]:
    """The members: of a ring from the smallest address on along the edges, of a star the centre first, else sorted."""
    ascending = tuple(sorted(members, key=numerically))
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


def numerically(address: str) -> tuple[int, str, list[int]]:
    """IPv4 by its numbers, everything else as text."""
    parts = address.split(".")
    if len(parts) == 4 and all(part.isdigit() for part in parts):
        return 0, "", [int(part) for part in parts]
    return 1, address, []
