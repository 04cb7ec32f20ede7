# SPDX-License-Identifier: Apache-2.0
"""Filters: what they let through, and what is said of those that do not parse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshot_example import cluster, example

from netmon.top.filters import FIELDS, Filter, FilterError, hint, parse
from netmon.top.flows import FLOWS, GROUPINGS, GROUPS, flow_rows, group_term, grouped
from netmon.top.jobs import JOBS
from netmon.top.links import LINKS

ROWS = flow_rows(example().flows)


def hosts(text: str) -> list[str]:
    wanted = parse(text)
    return [row.view.host for row in ROWS if wanted.holds(FLOWS.values(row))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ["h0", "h2", "h1"]),
        ("host:h2 class:cross proc:iperf3 port:5201", ["h2"]),
        ("HOST:H2", ["h2"]),
        ("host:^h[01]$", ["h0", "h1"]),
        ("-host:h2", ["h0", "h1"]),
        ("!class:cross -class:uncl", ["h0"]),
        ("port:5000-5300", ["h0", "h2"]),
        ("port:443,5201", ["h2", "h1"]),
        ("port:>40111", ["h2"]),
        ("rate:>=410mbit rate:<1gbit", ["h0", "h2"]),
        ("bytes:<1MB", ["h1"]),
        ("peer:h0", ["h2"]),
        ("iperf", ["h2"]),
        ("job:resnet rank:0", ["h0"]),
        ("process:python3 protocol:tcp direction:tx", ["h0"]),
        ('proc:"python3"', ["h0"]),
        ("addr:fd00", ["h1"]),
        ("cause:cross", ["h0", "h2", "h1"]),  # flows have none: it is a question to other tables
    ],
)
def test_what_a_filter_lets_through(text: str, found: list[str]) -> None:
    assert hosts(text) == found


@pytest.mark.parametrize(
    ("text", "place", "possible"),
    [
        ("hots:h3", 0, "host"),
        ("host:h3 prot:80", 8, "port"),
        ("zzz:1", 0, "iteration"),
        ("host:", 5, "regular expression"),
        ("proc:(x", 5, "regular expression"),
        ("host:h3 class:crss", 14, "DL-shared"),
        ("dir:up", 4, "rx, tx"),
        ("port:http", 5, "5000-5300"),
        ("port:80,x", 8, "5000-5300"),
        ("port:1-", 5, "5000-5300"),
        ("rate:100mbit", 5, "rate:>100mbit"),
        ("rate:>100mbitt", 6, "rate:>100mbit"),
        ('proc:"a b', 9, '"'),
        ("-", 1, "regular expression"),
        ("x" * 2000, 1000, "1000 characters"),
    ],
)
def test_a_filter_that_does_not_parse_tells_the_place_and_what_is_possible(
    text: str, place: int, possible: str
) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text)
    assert caught.value.place == place
    assert possible in caught.value.possible


def test_what_may_follow_is_told_while_one_types() -> None:
    assert hint("host:h3 cl") == "fields: class:"
    assert hint("host:h3 class:") == "class: unclassified, DL-only, DL-shared, cross"
    assert all(f"{field}:" in hint("") for field in FIELDS)


@given(st.text('abc:-!"(>.,0159 ', max_size=30))
def test_whatever_is_typed_parses_or_says_why_not(text: str) -> None:
    wanted, error = Filter(), None
    try:
        wanted = parse(text)
    except FilterError as caught:
        error = caught
    assert error is None or (0 <= error.place <= len(text) and error.possible)
    for row in ROWS:
        wanted.holds(FLOWS.values(row))


def test_a_row_is_found_by_its_own_filter_and_no_other_is() -> None:
    for row in ROWS:
        wanted = parse(FLOWS.term(row))
        assert [one for one in ROWS if wanted.holds(FLOWS.values(one))] == [row]
    for kind, views in ((LINKS, example().links), (JOBS, cluster().jobs)):
        for view in views:
            assert [one for one in views if parse(kind.term(view)).holds(kind.values(one))] == [view]


@pytest.mark.parametrize("by", GROUPINGS)
def test_groups_hold_all_flows_and_lead_to_them(by: str) -> None:
    groups = grouped(ROWS, by)
    assert sum(group.flows for group in groups) == len(ROWS)
    assert sum(group.wire_bytes for group in groups) == sum(row.view.wire_bytes for row in ROWS)
    for group in groups:
        wanted = parse(group_term(group))
        assert sum(wanted.holds(FLOWS.values(row)) for row in ROWS) >= group.flows
        assert GROUPS.key(group) == (by, group.name)
