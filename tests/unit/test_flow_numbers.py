# SPDX-License-Identifier: Apache-2.0
"""Which flows get an id of their own, and under what the others are accounted."""

import numpy as np
import pytest

from netmon.kernel.meter.flow_numbers import LARGE_BYTES, FlowLimit, FlowNumbers, UnnamedSlots, _Room, reversed_keys
from netmon.kernel.sock_diag import packed_address
from netmon.records import FLOW_KEY, SLOT

S = 1_000_000_000
RX, TX = 0, 1
FEW = FlowLimit(per_s=2, burst=3, alive=100)


def key(remote: str, port: int = 1000, direction: int = RX, local_port: int = 80, protocol: int = 6, index: int = 3):
    ends = [(packed_address(remote), port), (packed_address("::1" if ":" in remote else "192.0.2.1"), local_port)]
    (src, src_port), (dst, dst_port) = ends if direction == RX else ends[::-1]
    return (src, dst, src_port, dst_port, index << 9 | direction << 8 | protocol)


def keys(*rows):
    return np.array(list(rows), FLOW_KEY)


def spent(now_ns: int = S) -> FlowNumbers:
    """Whose budget for everybody is used up."""
    numbers = FlowNumbers(FEW)
    numbers.number(keys(*(key("203.0.113.1", port) for port in range(3))), now_ns)
    return numbers


def aggregate(numbers: FlowNumbers, flow_id: int):
    return numbers.aggregates.by_id[flow_id]


def test_within_the_budget_every_flow_has_its_own_id() -> None:
    numbers = FlowNumbers(FEW)
    some = keys(key("198.51.100.1"), key("198.51.100.2"), key("198.51.100.1"))
    assert numbers.number(some, S).tolist() == [1, 2, 1]
    new = numbers.take_new()
    assert (new.ids.tolist(), new.keys.tolist()) == ([1, 2], some[:2].tolist())
    assert numbers.take_new().ids.tolist() == []


def test_a_budget_earns_with_time_up_to_its_burst() -> None:
    budget = _Room(FEW)
    assert [budget.take(2, 0, S), budget.take(2, 0, S), budget.take(2, 0, S)] == [2, 1, 0]
    assert budget.take(9, 0, 2 * S) == 2
    assert budget.take(9, 0, 900 * S) == 3
    assert budget.take(9, 99, 1000 * S) == 1
    assert budget.take(9, 0, S) == 2  # a clock that goes back earns nothing


def test_beyond_it_flows_share_the_prefix_of_their_remote_address() -> None:
    numbers = spent()
    ids = numbers.number(
        keys(
            key("198.51.100.1"),
            key("198.51.100.200", 7),
            key("198.51.101.1"),
            key("198.51.100.1", direction=TX),
            key("198.51.100.1", index=4),
            key("198.51.100.1", protocol=17),
            key("2001:db8:0:1::1"),
            key("2001:db8:0:2::1"),
        ),
        S,
    )
    assert ids[0] == ids[1]
    assert ids[6] == ids[7]
    assert len(set(ids.tolist())) == 6  # links, directions, protocols and prefixes are never mixed
    first, last = aggregate(numbers, ids[0]), aggregate(numbers, ids[6])
    assert (first.address, first.prefix_bits, first.members) == (packed_address("198.51.100.0"), 24, 2)
    assert (last.address, last.prefix_bits, last.members) == (packed_address("2001:db8::"), 48, 2)
    assert first.link_protocol == 3 << 9 | 6
    assert numbers.take_new().ids.tolist() == [1, 2, 3]


def test_however_many_prefixes_there_are_aggregates_are_bounded_and_every_flow_is_in_one() -> None:
    numbers = spent()
    rng = np.random.default_rng(1)
    many = keys(*(key("203.0.113.1") for _ in range(50_000)))
    many["src"] = (
        np.ascontiguousarray(
            np.concatenate(
                [
                    np.tile(np.frombuffer(packed_address("0.0.0.0")[:12], np.uint8), (50_000, 1)),
                    rng.integers(0, 256, (50_000, 4)),
                ],
                axis=1,
            ).astype(np.uint8)
        )
        .view("V16")
        .ravel()
    )
    assert (numbers.number(many, S) > 0).all()
    assert len(numbers.aggregates.by_id) < 2_100
    assert sum(one.members for one in numbers.aggregates.by_id.values()) == 50_000
    assert {one.prefix_bits for one in numbers.aggregates.by_id.values()} == {24, 8}


def test_what_looks_like_training_is_described_beyond_the_budget() -> None:
    numbers = spent()
    numbers.training = lambda found: found["src_port"] == 4242
    ids = numbers.number(keys(key("198.51.100.1", 4242), key("198.51.100.1", 4243)), S)
    assert ids[0] not in numbers.aggregates.by_id
    assert ids[1] in numbers.aggregates.by_id


def test_the_other_direction_of_a_described_flow_is_described() -> None:
    numbers = spent()
    ids = numbers.number(keys(key("203.0.113.1", 0, TX), key("203.0.113.1", 99, TX)), S)
    assert ids[0] not in numbers.aggregates.by_id
    assert ids[1] in numbers.aggregates.by_id


@pytest.mark.parametrize("direction", [RX, TX])
def test_reversing_a_key_twice_gives_it_back(direction: int) -> None:
    one = keys(key("198.51.100.7", 5, direction))
    other = reversed_keys(one).view(FLOW_KEY)
    assert reversed_keys(other).tolist() == one.view("V40").tolist()


def test_a_service_of_one_process_is_one_aggregate() -> None:
    numbers = spent()
    numbers.aggregates.services[1, 53] = True
    rows = [key(f"198.51.{n}.1", local_port=53, protocol=17) for n in range(3)]
    ids = numbers.number(keys(*rows, key("198.51.0.1", local_port=54, protocol=17)), S)
    assert len(set(ids[:3].tolist())) == 1
    service = aggregate(numbers, ids[0])
    assert (service.local_port, service.prefix_bits, service.members) == (53, 0, 3)
    assert aggregate(numbers, ids[3]).prefix_bits == 24


class Slots:
    """Four slots of a kernel, and what a meter keeps beside them."""

    def __init__(self, numbers: FlowNumbers) -> None:
        self.kernel = np.zeros(4, SLOT)
        self.flows, self.generation = np.zeros(4, np.uint32), np.zeros(4, np.uint16)
        self.numbers, self.unnamed = numbers, UnnamedSlots(numbers, self.kernel, self.flows, self.generation)

    def open(self, slot: int, one: tuple) -> int:
        self.kernel["key"][slot] = one
        self.kernel["generation"][slot] += 1
        self.generation[slot] = self.kernel["generation"][slot]
        slots = np.array([slot], np.uint32)
        self.flows[slots] = self.numbers.number(keys(one), S)
        self.unnamed.open(slots, self.flows[slots])
        return int(self.flows[slot])

    def carry(self, slot: int, size: int, generation: int | None = None) -> int:
        now = self.generation[slot] if generation is None else generation
        self.unnamed.carry(np.array([[0, size, slot | int(now) << 32]], np.uint64), S)
        return int(self.flows[slot])


def test_a_flow_of_an_aggregate_that_turns_out_to_be_large_gets_an_id() -> None:
    numbers = spent()
    numbers.take_new()
    slots = Slots(numbers)
    crowd = slots.open(0, key("198.51.100.1"))
    assert slots.open(1, key("198.51.100.2")) == crowd
    slots.carry(0, LARGE_BYTES - 1)
    slots.unnamed.promote(S)
    assert slots.flows[0] == crowd
    slots.carry(0, 1)
    slots.carry(1, LARGE_BYTES, generation=0)  # of whoever had the slot before
    slots.unnamed.promote(S)
    new = numbers.take_new()
    assert new.keys.tolist() == keys(key("198.51.100.1")).tolist()
    assert slots.flows[:2].tolist() == [new.ids[0], crowd]


def test_a_flow_that_was_forgotten_and_goes_on_is_a_new_one() -> None:
    numbers = FlowNumbers(FlowLimit(per_s=1, burst=2, alive=100))
    slots = Slots(numbers)
    old, other = slots.open(0, key("198.51.100.1")), slots.open(1, key("198.51.100.2"))
    places = slots.unnamed.forget([old, other])
    assert slots.flows[0] == places[old] != old
    slots.unnamed.promote(S)
    assert len(numbers) == 0
    numbers.take_new()
    numbers._any = _Room(FlowLimit(per_s=0, burst=1, alive=100))
    assert slots.carry(0, 60) == numbers.take_new().ids[0] > other
    assert slots.carry(1, 60) == places[other]  # no more to be had: with its neighbours


def test_forgetting_what_is_not_known_changes_nothing() -> None:
    numbers = spent()
    assert numbers.forget([99]) == {}
    assert len(numbers) == 3


def test_beyond_it_connections_to_a_service_that_one_process_visits_are_that_services() -> None:
    numbers = spent()
    web, names = ("198.51.100.7", 443, 6), ("2001:db8::53", 53, 17)
    numbers.aggregates.know_remote((protocol, packed_address(text), port) for text, port, protocol in (web, names))
    visits = [key("198.51.100.7", 443, direction, local) for direction in (TX, RX) for local in (5000, 5001)]
    others = [key("198.51.100.7", 80, TX), key("198.51.100.8", 443, TX), key("198.51.100.7", 443, TX, protocol=17)]
    sent, _, came, came_too, plain, other, datagram, asked = numbers.number(
        keys(*visits, *others, key("2001:db8::53", 53, TX, protocol=17)), S
    ).tolist()
    assert came == came_too != sent
    told = aggregate(numbers, sent)
    assert (told.address, told.prefix_bits, told.remote_port, told.members) == (
        packed_address("198.51.100.7"),
        32,
        443,
        2,
    )
    assert aggregate(numbers, asked).prefix_bits == 128
    assert plain == other
    assert aggregate(numbers, plain).prefix_bits == aggregate(numbers, datagram).prefix_bits == 24
    numbers.aggregates.know_remote(())
    assert numbers.number(keys(key("198.51.100.7", 443, TX, 5002)), S).tolist() == [plain]
