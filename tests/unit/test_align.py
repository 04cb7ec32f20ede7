# SPDX-License-Identifier: Apache-2.0
"""A host's clock on the collector's axis, batch by batch, and the hosts' clocks against each other."""

from collections.abc import Sequence

import numpy as np
import pytest

from collector.host.align import Alignment, Update, update_all
from collector.host.rows import PendingRows
from collector.job_exchange import clock_of, correct
from collector.jobs.clocks import Clocks
from collector.messages import ONSET_UPDATE, FlowUpdate, HostNews, flow_numbers
from netmon.dl.timemap import TimeMap
from netmon.records import ClockExchange, ClockSample, Direction

UTC = 1_760_000_000_000_000_000
S, MS, US = 1_000_000_000, 1_000_000, 1_000
BEGIN = 500 * S
BATCH = 200 * MS


def updated(alignment: Alignment, *news):
    """By how many ns its map steps."""
    return update_all([Update(alignment, *news)])[0]


class Host:
    """A clock and its alignment; every batch brings two exchanges of there_ns one way and 100 µs back."""

    there_ns = 100 * US

    def __init__(self, offset_ns: int = 0, skew: float = 0.0, reported_ns: int = 0, exchanges: bool = True) -> None:
        """UTC = mono + UTC + offset_ns, growing by skew; the host believes that it is reported_ns more."""
        self.offset_ns, self.skew, self.reported_ns, self.exchanges = offset_ns, skew, reported_ns, exchanges
        self.now = BEGIN
        self.alignment = Alignment(self.sample(), 10 * US)

    def theta(self, mono_ns: int) -> int:
        return UTC + self.offset_ns + round(self.skew * (mono_ns - BEGIN))

    def sample(self) -> ClockSample:
        """Its UTC is as skewed as its mono."""
        return ClockSample(self.now, self.now + self.theta(BEGIN) + self.reported_ns, 100)

    def _exchange(self, at: int) -> ClockExchange:
        received = at + self.there_ns + self.theta(at)
        return ClockExchange(at, received, received + US, at + self.there_ns + 101 * US)

    def batches(self, seconds: float) -> list[int | None]:
        steps = []
        for _ in range(round(seconds * S / BATCH)):
            self.now += BATCH
            made = [self._exchange(self.now - 90 * MS), self._exchange(self.now - 40 * MS)] if self.exchanges else []
            steps.append(updated(self.alignment, self.sample(), made, self.now, self.now - S))
        return steps

    def loaded(self, rng: np.random.Generator, seconds: float, most_ns: int = 2 * S) -> list[int]:
        """Batches of a busy machine: of each exchange 0.1 to 1 of most_ns, divided at random between both ways.

        Returns how far a row of a second ago is off, batch by batch.
        """
        errors = []
        for _ in range(round(seconds * S / BATCH)):
            self.now += BATCH
            there, back = (rng.dirichlet([1, 1]) * rng.uniform(0.1, 1) * most_ns).astype(np.int64).tolist()
            sent = self.now - there - back
            received = sent + there + self.theta(sent + there)
            exchange = ClockExchange(sent, received, self.now - back + self.theta(self.now - back), self.now)
            updated(self.alignment, self.sample(), [exchange], self.now, self.now - S)
            assert abs(self.error(self.now)) <= self.alignment.error_ns + US
            errors.append(self.error(self.now - S))
        return errors

    def error(self, mono_ns: int) -> int:
        return self.alignment.utc(mono_ns) - mono_ns - self.theta(mono_ns)


@pytest.mark.parametrize("skew", [0, 200e-6, -200e-6])
def test_the_first_rows_are_aligned_already(skew):
    host = Host(5 * S, skew, reported_ns=-3 * S)
    assert host.batches(1) == [None] * 5  # no step: nothing had been stored
    assert abs(host.error(BEGIN)) < 100 * US
    host.batches(20)
    for back in (0, S, 3 * S):
        assert abs(host.error(host.now - back)) < 10 * US
    assert host.alignment.source == "exchange"
    assert 90 * US < host.alignment.error_ns < 150 * US
    assert host.alignment.skew_ppm == pytest.approx(-skew * 1e6, abs=1)
    assert host.alignment.host_offset_ns == pytest.approx(-3 * S - skew * 21 * S, abs=50 * US)


def test_without_skew_the_grid_stays_as_it_is():
    host = Host()
    host.batches(5)
    before = host.alignment.map
    host.batches(60)
    assert host.alignment.map is before


@pytest.mark.parametrize(("seed", "calm_s"), [(1, 0), (2, 0), (3, 3), (4, 20)])
def test_load_does_not_move_a_host_whose_own_clock_is_right(seed, calm_s):
    host = Host()
    host.batches(calm_s)
    begun = host.alignment.map
    errors = host.loaded(np.random.default_rng(seed), 30)
    host.batches(20)
    assert {*errors, host.error(host.now)} == {0}
    assert host.alignment.map is begun or not calm_s
    assert host.alignment.error_ns < 150 * US


@pytest.mark.parametrize(("seed", "skew", "reported_ns"), [(1, -6e-6, 100 * US), (2, 200e-6, -5 * S), (3, 0, 5 * S)])
def test_load_does_not_disturb_an_estimate(seed, skew, reported_ns):
    host = Host(skew=skew, reported_ns=reported_ns)
    host.batches(20)
    before = host.error(host.now)
    errors = host.loaded(np.random.default_rng(seed), 30)
    assert max(abs(error - before) for error in errors) < 300 * US
    assert host.alignment.error_ns < 2 * MS  # what was known before the load still is, to within the wander of 30 s
    host.batches(20)
    assert abs(host.error(host.now)) < 50 * US


@pytest.mark.parametrize(("seed", "skew"), [(1, 0), (2, 200e-6), (3, -50e-6)])
def test_what_begins_under_load_is_never_further_off_than_at_first(seed, skew):
    host = Host(skew=skew, reported_ns=7 * S)
    errors = host.loaded(np.random.default_rng(seed), 30)[10:]
    assert np.abs(errors).max() <= abs(errors[0]) + 10 * MS
    host.batches(40)
    assert abs(host.error(host.now)) < 50 * US
    assert host.alignment.error_ns < 150 * US


def test_without_fresh_exchanges_the_bound_widens():
    host = Host(reported_ns=S)
    host.batches(20)
    before = host.alignment.error_ns
    host.exchanges = False
    host.batches(60)
    assert before + 60 * US < host.alignment.error_ns < before + 2 * MS
    assert abs(host.error(host.now)) <= host.alignment.error_ns


def test_an_exchange_that_refutes_the_own_clock_is_followed():
    host = Host()
    host.batches(5)
    host.offset_ns += 400 * US  # as when the host's UTC is set, and the collector's is not
    host.reported_ns -= 400 * US
    host.batches(40)
    assert abs(host.error(host.now)) < 10 * US


def test_a_clock_that_jumps_makes_a_step_once():
    host = Host()
    host.batches(20)
    stored = host.alignment.utc(host.now - 2 * S)
    host.offset_ns += 7 * S
    steps = [step for step in host.batches(20) if step]
    assert len(steps) == 1
    assert steps[0] == pytest.approx(7 * S, abs=MS)
    assert host.alignment.utc(host.now - 22 * S) == stored
    assert abs(host.error(host.now)) < 10 * US


@pytest.mark.parametrize("slept", [True, False])
def test_a_host_that_has_slept_has_its_step_where_it_woke_up(slept):
    host = Host()
    host.batches(20)
    before, woke = host.alignment.map, host.now + BATCH
    if slept:
        host.offset_ns += 60 * S
    host.alignment.add_clock_set(woke, 61 * S)  # its own UTC has whole seconds only
    host.batches(5)  # rows of a second before are not settled
    old = np.arange(woke - 3 * S, woke, 10 * MS)
    assert (abs(host.alignment.map.utcs(old) - before.utcs(old)) < 10 * US).all()
    for later in range(0, S, 10 * MS):
        assert abs(host.error(woke + later)) < 100 * US


def test_a_host_without_exchange_is_believed():
    host = Host(reported_ns=2 * S, exchanges=False)
    host.batches(3)
    assert host.error(host.now) == 2 * S
    assert (host.alignment.source, host.alignment.host_offset_ns) == ("", 0)


def test_what_no_collector_can_have_said_is_passed_over():
    host = Host()
    host.now += BATCH
    sent = host.now - MS
    wrong = [
        ClockExchange(sent, 2**62, 2**62, sent + 1),
        ClockExchange(sent, -5, 5, sent + 1),
        ClockExchange(0, UTC, UTC + 1, 5),
        ClockExchange(-(2**63), UTC, UTC, 2**63 - 1),
    ]
    assert updated(host.alignment, host.sample(), wrong, host.now, host.now - S) is None
    assert host.alignment.source == ""


def test_hosts_that_are_all_kept_by_ptp_share_their_own_utc():
    hosts = [Host(reported_ns=300), Host(reported_ns=-200)]
    for host in hosts:
        host.sample = lambda of=host: ClockSample(of.now, of.now + of.theta(BEGIN) + of.reported_ns, 100, 500, "ptp")
        host.batches(5)
    compare(Clocks(), hosts)
    for host in hosts:
        host.batches(5)
        assert (host.alignment.source, host.alignment.error_ns) == ("ptp", pytest.approx(600, abs=1_100))


def compare(clocks: Clocks, hosts: Sequence[Host]) -> None:
    """What the job stage does with the clocks of hosts at places 0, 1, …, and what they make of it."""
    for told in clocks.compare([clock_of(place, f"h{place}", host.alignment) for place, host in enumerate(hosts)]):
        correct(hosts[told.session].alignment, told)


class Ends:
    """What two hosts see of one connection between them: bursts both ways after rests, 15 µs on the way."""

    def __init__(self, *hosts: Host) -> None:
        self.hosts, self.onsets = hosts, PendingRows()
        self.clocks, told = Clocks(), []
        for number in range(2):
            for flow_id, direction in ((0, Direction(1 - number)), (1, Direction(number))):
                ends = ("198.18.0.1", "198.18.0.2", 1, 2) if flow_id == 0 else ("198.18.0.2", "198.18.0.1", 2, 1)
                known = flow_numbers(number, flow_id), f"h{number}", "eth0", direction
                told.append(FlowUpdate(*known, *ends, 6, "", -1, False))
        self.clocks.add_news(HostNews(flows=told))
        self.rng, self.true = np.random.default_rng(1), BEGIN + UTC + 2 * S

    def second(self) -> None:
        """Its bursts, on both hosts."""
        times = self.true + np.cumsum(self.rng.uniform(60, 140, 10) * MS).astype(np.int64)
        self.true += S
        for number in (0, 1):
            for flow, sender in ((0, 0), (1, 1)):
                seen = times + sender * 5 * MS + (15 * US if number != sender else 0)
                mono = np.array([self._mono(self.hosts[number], int(utc)) for utc in seen])
                start = mono // (10 * US) * (10 * US)
                whose, width = np.full(len(start), number), np.full(len(start), 10_000)
                self.onsets.add(whose, np.full(len(start), flow), start, width)

    @staticmethod
    def _mono(host: Host, utc_ns: int) -> int:
        mono = utc_ns - UTC - host.offset_ns
        return mono - round(host.skew * (mono - BEGIN))

    def seconds(self, count: int) -> None:
        """So many, each with what its agents and the collector do in it."""
        for _ in range(count):
            for host in self.hosts:
                host.batches(1)
            self.second()
            self.compare()

    def compare(self) -> None:
        for number in range(2):
            taken = self.onsets.take(np.array([number]), 2)
            seen = np.empty(len(taken), ONSET_UPDATE)
            seen["flow"], seen["time_ns"] = flow_numbers(number, taken["flow"]), taken["time_ns"]
            seen["bucket_ns"] = taken["amount"]
            self.clocks.add_news(HostNews(onsets=seen))
        compare(self.clocks, self.hosts)


def test_onsets_of_hosts_that_send_each_other_nothing_are_let_go_of():
    ends = Ends(Host(), Host())
    ends.clocks = Clocks()  # which was told of no flow of theirs
    ends.seconds(5)
    delays = ends.clocks._delays
    assert (delays._new, len(delays._waiting), sum(map(len, delays._window))) == ([], 0, 0)


@pytest.mark.parametrize(("reported_ns", "skew"), [(0, 0.0), (4 * S, 0.0), (-4 * S, 200e-6)])
def test_traffic_alone_brings_two_hosts_together_to_a_bucket(reported_ns, skew):
    hosts = Host(skew=skew, reported_ns=reported_ns, exchanges=False), Host(exchanges=False)
    ends = Ends(*hosts)
    ends.seconds(20)
    at = hosts[0].now
    difference = hosts[0].error(at) - hosts[1].error(at)
    assert abs(difference) <= 12 * US
    assert [host.alignment.source for host in hosts] == ["traffic"] * 2
    assert max(host.alignment.error_ns for host in hosts) < 60 * US


@pytest.mark.parametrize("told_ms", [80, 100, 250, 420])
def test_onsets_that_meet_by_chance_hold_no_clock(told_ms):
    """The rests are of 60 to 140 ms: a wrong offset makes some of them coincide."""
    hosts = Host(reported_ns=told_ms * MS, exchanges=False), Host(exchanges=False)
    ends = Ends(*hosts)
    ends.seconds(12)
    at = hosts[0].now
    assert abs(hosts[0].error(at) - hosts[1].error(at)) <= 12 * US
    assert [host.alignment.source for host in hosts] == ["traffic"] * 2


def test_traffic_corrects_an_exchange_whose_ways_differ():
    hosts = Host(3 * S), Host()
    hosts[0].there_ns = 300 * US
    ends = Ends(*hosts)
    ends.seconds(20)
    first, second = (host.error(host.now) for host in hosts)
    assert first == pytest.approx(second, abs=20 * US)  # the exchange alone would be off by 100
    for host in hosts:
        assert abs(host.error(host.now)) <= host.alignment.error_ns
    assert hosts[0].alignment.source == "traffic"
    assert hosts[0].alignment.error_ns < hosts[0].alignment.fit.error_ns


def test_traffic_leaves_clocks_alone_that_it_cannot_refute():
    hosts = Host(), Host()
    ends = Ends(*hosts)
    ends.seconds(10)
    assert [host.error(host.now) for host in hosts] == [0, 0]
    assert max(host.alignment.error_ns for host in hosts) < 110 * US


def test_a_collector_that_starts_again_goes_on_where_it_was():
    host = Host(4 * S, 150e-6)
    host.batches(30)
    before = host.alignment
    host.alignment = Alignment(host.sample(), 10 * US, TimeMap.from_document(before.map.document()))
    assert host.batches(2) == [None] * 10
    for back in range(2, 10):
        assert abs(host.alignment.utc(host.now - back * S) - before.utc(host.now - back * S)) <= 10 * US
    assert abs(host.error(host.now - S)) < 50 * US


def test_clocks_that_are_updated_together_are_what_each_is_by_itself():
    clocks = [(0, 0.0, 0), (3 * MS, 4e-5, 0), (0, 0.0, 20 * MS), (-S, -1e-4, S)]
    alone, together = ([Host(*clock) for clock in clocks] for _ in range(2))
    for host in alone:
        host.batches(3)
    for _ in range(round(3 * S / BATCH)):
        updates = []
        for host in together:
            host.now += BATCH
            made = [host._exchange(host.now - 90 * MS), host._exchange(host.now - 40 * MS)]
            updates.append(Update(host.alignment, host.sample(), made, host.now, host.now - S))
        update_all(updates)
    for one, other in zip(alone, together, strict=True):
        assert one.alignment.fit == other.alignment.fit
        assert one.alignment.map.document() == other.alignment.map.document()
        assert (one.alignment.error_ns, one.alignment.source) == (other.alignment.error_ns, other.alignment.source)
