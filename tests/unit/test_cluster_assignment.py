# SPDX-License-Identifier: Apache-2.0
"""Which worker should have which hosts: whole components, fairly, and no more moves than that takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.bus.membership import HostTies, components
from collector.bus.worker import SLACK, assign
from netmon.errors import WireError

HOSTS = [f"gpu{number}" for number in range(24)]
WORKERS = ["w1", "w2", "w3", "w4"]


@st.composite
def clusters(draw):
    """Components, living workers with weights, owners of which some are gone."""
    hosts = draw(st.permutations(HOSTS))[: draw(st.integers(0, len(HOSTS)))]
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(hosts) - 1)))))
    parts = [hosts[a:b] for a, b in zip([0, *cuts], [*cuts, len(hosts)], strict=True)]
    live = draw(st.dictionaries(st.sampled_from(WORKERS), st.sampled_from([0.5, 1.0, 2.0]), min_size=1))
    owners = draw(st.dictionaries(st.sampled_from(HOSTS), st.sampled_from([*WORKERS, "gone"])))
    return [frozenset(part) for part in parts if part], live, owners


@given(clusters())
def test_every_host_has_a_living_worker_and_components_stay_whole(cluster):
    parts, workers, owners = cluster
    wanted = assign(parts, workers, owners)
    assert set(wanted) == {host for part in parts for host in part}
    assert set(wanted.values()) <= set(workers)
    assert all(len({wanted[host] for host in part}) == 1 for part in parts)


@given(clusters(), st.randoms())
def test_all_workers_come_to_the_same_answer_and_it_stays(cluster, chance):
    parts, workers, owners = cluster
    wanted = assign(parts, workers, owners)
    shuffled = [list(part) for part in parts]
    chance.shuffle(shuffled)
    for part in shuffled:
        chance.shuffle(part)
    backwards = dict(reversed(workers.items()))
    assert assign(shuffled, backwards, dict(reversed(owners.items()))) == wanted
    assert assign(parts, workers, wanted) == wanted


@given(clusters())
def test_no_worker_has_much_more_than_another_unless_a_component_is_that_large(cluster):
    parts, workers, owners = cluster
    wanted = assign(parts, workers, owners)
    load = {name: sum(worker == name for worker in wanted.values()) / weight for name, weight in workers.items()}
    apart = max(load.values()) - min(load.values())
    largest = max(map(len, parts), default=0)
    fair = SLACK * sum(map(len, parts)) / sum(workers.values())
    assert apart <= fair or apart <= largest * 2 / min(workers.values())


@given(clusters(), st.sampled_from(WORKERS))
def test_a_worker_that_dies_moves_its_own_hosts_and_only_a_few_others(cluster, victim):
    """What the living have stays, but for what makes it fair again."""
    parts, workers, owners = cluster
    before = assign(parts, workers, owners)
    left = {name: 1.0 for name in workers if name != victim}
    if not left:
        return
    equal = assign(parts, dict.fromkeys(workers, 1.0), before)
    after = assign(parts, left, equal)
    load = {name: sum(worker == name for worker in equal.values()) for name in left}
    if victim not in equal.values() and max(load.values()) - min(load.values()) <= SLACK * len(equal) / len(left):
        assert after == equal


def test_of_two_components_each_of_two_workers_has_one():
    pairs = [{"a", "b"}, {"c", "d"}]
    wanted = assign(pairs, {"w1": 1, "w2": 1}, {})
    assert {wanted["a"], wanted["c"]} == {"w1", "w2"}


def test_a_worker_that_joins_gets_its_share_and_nothing_moves_between_the_others():
    parts = [{host} for host in HOSTS]
    before = assign(parts, {"w1": 1, "w2": 1}, {})
    after = assign(parts, {"w1": 1, "w2": 1, "w3": 1}, before)
    moved = {host for host in HOSTS if before[host] != after[host]}
    assert {after[host] for host in moved} == {"w3"}
    assert 6 <= len(moved) <= 8


def test_a_component_that_has_grown_together_goes_to_who_has_most_of_it():
    owners = {"a": "w1", "b": "w2", "c": "w2", "d": "w1"}
    wanted = assign([{"a", "b", "c"}, {"d"}], {"w1": 1, "w2": 1}, owners)
    assert wanted == {"a": "w2", "b": "w2", "c": "w2", "d": "w1"}


def test_without_workers_nothing_is_assigned():
    assert assign([{"a"}], {}, {"a": "w1"}) == {}


def ties(addresses=(), ends=(), jobs=()):
    return HostTies(frozenset(addresses), frozenset(ends), frozenset(jobs))


def test_hosts_of_one_job_or_of_one_flow_are_one_component():
    known = {
        "a": ties(["10.0.0.1"], ["10.0.0.2"]),
        "b": ties(["10.0.0.2"]),
        "c": ties(["10.0.0.3"], jobs=["resnet"]),
        "d": ties(["10.0.0.4"], jobs=["resnet"]),
        "e": ties(["10.0.0.5"], ["192.0.2.1"]),
    }
    assert components("abcdef", known) == [frozenset(part) for part in ("ab", "cd", "e", "f")]


def test_an_address_that_every_host_has_ties_nobody():
    bridge = "172.17.0.1"
    known = {"a": ties([bridge], ["172.17.0.2"]), "b": ties([bridge]), "c": ties([], [bridge])}
    assert components("abc", known) == [frozenset("a"), frozenset("b"), frozenset("c")]


def test_ties_travel_as_text():
    told = ties(["10.0.0.1"], ["10.0.0.2", "::2"], ["j"])
    assert HostTies.from_text(told.text().encode()) == told
    for wrong in (b"", b"[]", b"{}", b'{"addresses":1,"ends":[],"jobs":[]}'):
        with pytest.raises(WireError):
            HostTies.from_text(wrong)
