# SPDX-License-Identifier: Apache-2.0
"""The loops in C do what their twins in numpy do, and take nothing that would lead them out of an array."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from netmon.dl import history
from netmon.dl.coarse import sum_bins
from netmon.dl.operations import BEGINS, Works, _pair_works
from netmon.errors import WireError
from netmon.kernel.meter.flow_numbers import LARGE_BYTES, FlowNumbers, UnnamedSlots, _numbers_of
from netmon.kernel.meter.memory import Fence, Geometry, blank_memory
from netmon.kernel.meter.meter import SlotArrays, SlotHolders, SlotStates
from netmon.native import compiled
from netmon.records import BUCKET, COARSE, COUNTED, FLOW_KEY, KERNEL_BUCKET, Columns, Table
from netmon.wire import batch_fields, buckets, netmon_pb2
from netmon.wire.batch_fields import ROWS, Split, split_buckets
from netmon.wire.buckets import COLUMNS, COLUMNS_COARSE, RUNS, encode_buckets

pytestmark = pytest.mark.skipif(compiled is None, reason="netmon was installed without a compiler")

U32 = 2**32 - 1


def assert_alike(one: Columns, other: Columns) -> None:
    assert one.names == other.names
    for name in one.names:
        assert one[name].dtype == other[name].dtype, name
        assert one[name].tolist() == other[name].tolist(), name


# --- columns of numbers


@st.composite
def packed(draw: st.DrawFn, columns: int, rows: int) -> bytes:
    """So many columns of so many numbers, of any widths."""
    widths = draw(st.lists(st.sampled_from((0, 1, 2, 4, 8)), min_size=columns, max_size=columns))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return b"".join(bytes([width]) + rng.bytes(width * rows) for width in widths)


@given(st.binary(max_size=40) | packed(3, 4), st.integers(0, 7), st.integers(0, 2**64 - 1) | st.integers(0, 12))
@example(b"\x08" + bytes(8), 1, 2**61 + 1)
def test_widths_of_columns(data: bytes, wanted: int, count: int) -> None:
    try:
        widths = list(buckets._column_widths(data, wanted, count, "columns"))
    except WireError:
        assert compiled.column_widths(data, wanted, count) is None
    else:
        assert list(compiled.column_widths(data, wanted, count)) == widths


# --- bucket rows of many messages


@st.composite
def split(draw: st.DrawFn) -> Split:
    """A message that could have come: its columns are whole, and hold anything."""
    rows, coarse = draw(st.integers(1, 40) | st.sampled_from((511, 512, 513, 1500))), draw(st.booleans())
    flows = draw(st.integers(1, min(rows, 700)))
    run_data, data = draw(packed(RUNS, flows)), draw(packed(COLUMNS_COARSE if coarse else COLUMNS, rows))
    if draw(st.booleans()):  # runs that have as many rows as the message
        cuts = np.sort(np.random.default_rng(rows).integers(0, rows + 1, flows - 1))
        lengths = np.diff(np.concatenate([[0], cuts, [rows]]))
        first = 1 + run_data[0] * flows
        after = first + 1 + run_data[first] * flows
        planes = lengths.astype("<u8").view(np.uint8).reshape(-1, 8).T.tobytes()
        run_data = run_data[:first] + b"\x08" + planes + run_data[after:]
    numbers = [draw(st.integers(0, 2**64 - 1)) for _ in range(3)]
    widths = buckets._column_widths(run_data, RUNS, flows, "runs")
    column_widths = buckets._column_widths(data, COLUMNS_COARSE if coarse else COLUMNS, rows, "columns")
    numbers[0] >>= 1
    return Split(rows, flows, *numbers, coarse, run_data, widths, data, column_widths)


@given(st.lists(split(), min_size=1, max_size=4))
def test_rows_of_messages(splits: list[Split]) -> None:
    batch = np.arange(len(splits), dtype=np.int32) * 3
    rows, runs, latest, good = batch_fields._join(splits, batch)
    same_rows, same_runs, same_latest, same_good = batch_fields._join_compiled(splits, batch)
    whole = np.repeat(good, [one.rows for one in splits])  # of others rows mean nothing
    assert_alike(rows[whole], same_rows[whole])
    assert good.tolist() == same_good.tolist()
    assert latest.tolist() == same_latest.tolist()
    for column, other in zip(runs, same_runs, strict=True):
        assert column.dtype == other.dtype
        assert column.tolist() == other.tolist()


@pytest.mark.parametrize("dtype", [BUCKET, COARSE])
def test_rows_are_what_was_sent(dtype: "np.dtype[np.void]") -> None:
    rng = np.random.default_rng(1)
    table = np.zeros(3000, dtype)
    for name in dtype.names or ():
        table[name] = rng.integers(0, U32, len(table))
    message = encode_buckets(table, 10, netmon_pb2.Buckets())
    rows, *_ = batch_fields._join_compiled([split_buckets(message)], np.zeros(1, np.int32))
    order = np.argsort(table["flow_id"], kind="stable")
    for name in (
        "packets",
        "wire_bytes",
        "payload_bytes",
        *(("peak_bytes", "busy_buckets") if dtype == COARSE else ()),
    ):
        assert rows[name].tolist() == table[name][order].tolist()


def good_arguments() -> dict[str, Any]:
    whole = Split(3, 2, 10, 0, 1, False, bytes([0, 1, 1, 2, 0, 0]), (0, 1, 0, 0), bytes(COLUMNS), (0,) * COLUMNS)
    return {
        "splits": [whole],
        "batch": np.zeros(1, np.int32),
        "rows": tuple(np.zeros(3, ROWS[name]) for name in ROWS.names or ()),
        "runs": (np.zeros(2, np.int64), np.zeros(2, np.uint32), np.zeros(2, np.int64)),
        "latest": np.zeros(1, np.uint64),
        "good": np.zeros(1, np.bool_),
    }


def test_arguments_that_fit() -> None:
    arguments = good_arguments()
    compiled.join_buckets(*arguments.values())
    assert arguments["runs"][2].tolist() == [1, 2]


HOSTILE = {
    "a row too many": {"splits": [good_arguments()["splits"][0]._replace(rows=4, columns=bytes(4))]},
    "a flow too many": {"splits": [good_arguments()["splits"][0]._replace(flows=3)]},
    "more flows than rows": {"splits": [good_arguments()["splits"][0]._replace(rows=1)]},
    "no flows": {"splits": [good_arguments()["splits"][0]._replace(flows=0)]},
    "rows beyond memory": {"splits": [good_arguments()["splits"][0]._replace(rows=2**40)]},
    "rows beyond numbers": {"splits": [good_arguments()["splits"][0]._replace(rows=2**70)]},
    "negative": {"splits": [good_arguments()["splits"][0]._replace(base_ns=-1)]},
    "columns cut short": {"splits": [good_arguments()["splits"][0]._replace(columns=bytes([1, 0]))]},
    "runs cut short": {"splits": [good_arguments()["splits"][0]._replace(runs=b"")]},
    "columns too long": {"splits": [good_arguments()["splits"][0]._replace(columns=bytes(COLUMNS + 1))]},
    "a width that is none": {"splits": [good_arguments()["splits"][0]._replace(columns=bytes([3]) * 20)]},
    "columns of coarse rows missing": {"splits": [good_arguments()["splits"][0]._replace(coarse=True)]},
    "no bytes": {"splits": [good_arguments()["splits"][0]._replace(runs="text")]},
    "no splits": {"splits": [(1, 2)]},
    "no list": {"splits": None},
    "fewer messages": {"splits": []},
    "another dtype": {"batch": np.zeros(1, np.int64)},
    "not contiguous": {"rows": (np.zeros(6, np.int32)[::2], *good_arguments()["rows"][1:])},
    "a short column": {"rows": (*good_arguments()["rows"][:-1], np.zeros(2, np.uint32))},
    "a column too few": {"rows": good_arguments()["rows"][:-1]},
    "none at all": {"runs": ()},
    "read only": {"latest": np.frombuffer(bytes(8), np.uint64)},
}


@pytest.mark.parametrize("wrong", HOSTILE.values(), ids=HOSTILE)
def test_arguments_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    arguments = good_arguments() | wrong
    with pytest.raises((ValueError, TypeError, OverflowError, BufferError)):
        compiled.join_buckets(*arguments.values())


# --- sums of payload


@given(st.data())
def test_sums_of_payload(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    runs, keys = data.draw(st.integers(1, 30)), data.draw(st.sampled_from((1, 3, 300, 2**60)))
    host, label = np.sort(rng.integers(0, 3, runs)), rng.integers(-3, 3, runs) * 10**17
    label = label[np.lexsort((label, host))]
    count = rng.integers(0, data.draw(st.sampled_from((2, 40, 400))), runs)
    rows = int(count.sum())
    key, payload = (
        rng.integers(0, keys, rows),
        rng.integers(0, 3, rows).astype(data.draw(st.sampled_from(("u4", "i8")))),
    )
    some = np.flatnonzero(payload)
    each = (np.repeat(column, count)[some] for column in (host, label))
    wanted = history._summed(*each, key[some], payload[some])
    found = history._summed_in_order(host, label, count, key, payload)
    if found is None:
        assert keys > 256
        return
    for name, column in wanted.items():
        assert found[name].tolist() == column.tolist(), name


def test_hosts_that_do_not_ascend_are_left_to_others() -> None:
    one, two = np.ones(2, np.int64), np.array([1, 0])
    assert history._summed_in_order(two, one, one, one, one) is None
    assert history._summed_in_order(one, two, one, one, one) is None


@pytest.mark.parametrize("count", [[3], [1], [-1], [2**62]])
def test_runs_with_other_rows_than_there_are(count: list[int]) -> None:
    one, two = np.ones(1, np.int64), np.ones(2, np.int64)
    sums = tuple(np.zeros(2, np.int64) for _ in range(4))
    if count == [1]:  # a part of them
        assert compiled.sum_runs(one, one, np.array(count), two, two, sums) == 1
        return
    with pytest.raises(ValueError, match="more rows"):
        compiled.sum_runs(one, one, np.array(count), two, two, sums)


def test_arrays_of_other_lengths_are_refused() -> None:
    one, two = np.ones(1, np.int64), np.ones(2, np.int64)
    for arguments in ((one, two, one, two, two), (one, one, one, two, one), (one, one, one.astype("i4"), two, two)):
        with pytest.raises(ValueError, match="items"):
            compiled.sum_runs(*arguments, (two, two, two, two))
    with pytest.raises(ValueError, match="items"):
        compiled.sum_runs(one, one, one, two, two, (two, two, two, one))


# --- rows as the columns of a message


@given(
    st.integers(0, 2**32),
    st.integers(1, 700),
    st.sampled_from((1, 5, 70_000, 2**32)),
    st.sampled_from((0, 1, 10, 2**33)),
)
@pytest.mark.parametrize("dtype", [BUCKET, COARSE])
def test_columns_of_rows(dtype: "np.dtype[np.void]", seed: int, rows: int, flows: int, bucket_ns: int) -> None:
    rng = np.random.default_rng(seed)
    table = np.zeros(rows, dtype)
    for name in dtype.names or ():
        table[name] = rng.integers(0, rng.choice((1, 2, 300, 70_000, U32)), rows, endpoint=True)
    table["flow_id"] = rng.integers(0, flows, rows) + rng.integers(0, 2**32 - flows, endpoint=True)
    table["bucket_start_ns"] = 10**18 + rng.integers(0, rng.choice((1, 400, 2**40)), rows) * max(1, bucket_ns)
    if not rng.integers(3):
        table["bucket_start_ns"] += rng.integers(0, 2, rows).astype(np.uint64)
    one = buckets._pack_rows(table, dtype == COARSE, bucket_ns)
    assert compiled.pack_rows(table, dtype == COARSE, bucket_ns) == one


def test_rows_of_another_kind_are_refused() -> None:
    compiled.pack_rows(np.zeros(0, COARSE), True, 10)
    for table, coarse in ((np.zeros(3, COARSE), False), (np.zeros(3, BUCKET), True), (np.zeros(6, BUCKET)[::2], False)):
        with pytest.raises((ValueError, BufferError)):
            compiled.pack_rows(table, coarse, 10)


# --- rows of full resolution into coarser ones


def fine_rows(rng: np.random.Generator, rows: int, flows: int, buckets: int) -> Table:
    """Of buckets of 10 ns from 10¹⁸ on, and of the last flows there are."""
    table = np.zeros(rows, BUCKET)
    for name in ("packets", "wire_bytes", "payload_bytes"):
        table[name] = rng.integers(0, 10**6, rows)
    table["flow_id"] = U32 - rng.integers(0, flows, rows)
    table["bucket_start_ns"] = 10**18 + 10 * rng.integers(0, buckets, rows)
    return table


@given(
    st.integers(0, 2**32), st.integers(1, 300), st.sampled_from((1, 5, 2**32)), st.sampled_from((1, 40, 9999, 2**32))
)
def test_sums_of_bins(seed: int, rows: int, flows: int, buckets: int) -> None:
    table = fine_rows(np.random.default_rng(seed), rows, flows, buckets)
    for width in (1, 7, 100, U32):
        one = sum_bins(table, 10**18, 10, 10 * width)
        other = np.frombuffer(compiled.sum_bins(table, 10**18, 10, 10 * width), COARSE)
        assert one.tolist() == other.tolist()


def test_bins_of_other_rows_are_refused() -> None:
    good = {"rows": fine_rows(np.random.default_rng(1), 3, 1, 1), "base_ns": 10**18, "bucket_ns": 10, "width_ns": 100}
    assert len(compiled.sum_bins(*good.values())) == COARSE.itemsize
    for wrong in (
        {"rows": np.zeros(3, COARSE)},
        {"rows": good["rows"][::2]},
        {"rows": None},
        {"bucket_ns": 0},
        {"width_ns": 9},
        {"width_ns": 2**40},
        {"base_ns": "text"},
    ):
        with pytest.raises((ValueError, TypeError, BufferError)):
            compiled.sum_bins(*(good | wrong).values())


# --- what the kernel has counted

GEOMETRY = Geometry(10, cpus=1, slots=16, links=2, ring_records=64, flow_records=16, step_ring_bytes=4096)


class Slots:
    """Sixteen slots in any state, alike for the same seed."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        memory, count = blank_memory(GEOMETRY), GEOMETRY.slots
        self.arrays = SlotArrays.unused(count)
        self.arrays.flows[:] = rng.integers(0, 9, count)
        self.arrays.generations[:] = rng.choice((0, 1, 2, 65535), count)
        self.arrays.states[:] = rng.integers(0, 3, count)
        for table in (memory.slots, self.arrays.taken):
            table["bucket_start_ns"] = rng.integers(1, 5, count) * 10
            table["generation"] = rng.choice((0, 1, 2, 65535), count)
            for name in COUNTED:
                table[name] = rng.integers(0, 3, count)
        memory.slots["key"]["link_protocol"] = rng.integers(0, 6, count) << 8
        self.arrays.taken["link"] = rng.integers(0, 6, count)
        self.states = SlotStates(memory, self.arrays, Fence())
        self.states._live = np.flatnonzero(self.arrays.states == 1)
        self.unnamed = UnnamedSlots(FlowNumbers(), memory.slots, self.arrays.flows, self.arrays.generations)
        self.unnamed._kind[:] = rng.integers(0, 3, count)
        self.unnamed._bytes[:] = rng.integers(LARGE_BYTES - 3, LARGE_BYTES, count)
        changed = rng.integers(0, count, 8)
        generations = rng.choice((0, 1, 2, 65535), 8).astype(np.uint16)
        flows = changed.astype(np.uint32) * 7 + generations % 5  # the same whenever one is named again
        self.changes = SlotHolders(changed.astype(np.uint32), generations, flows)
        self.memory, self.rng = memory, rng

    def records(self, count: int) -> np.ndarray:
        records = np.zeros(count, KERNEL_BUCKET)
        records["slot"] = self.rng.integers(0, GEOMETRY.slots, count)
        records["generation"] = self.rng.choice((0, 1, 2, 65535), count)
        records["bucket_start_ns"] = self.rng.integers(1, 5, count) * 10
        for name in COUNTED:
            records[name] = self.rng.integers(0, 3, count)
        return records.view(np.uint64).reshape(count, 3)

    def everything(self) -> list[Any]:
        live = np.concatenate([self.states._live, *self.states._newly_live])
        return [*(column.tolist() for column in self.arrays), self.states.recovered.tolist(), sorted(live.tolist())]


@given(st.integers(0, 2**32), st.integers(0, 40))
def test_records_of_closed_buckets(seed: int, count: int) -> None:
    one, other = Slots(seed), Slots(seed)
    words, same = one.records(count), other.records(count)
    left, unknown = one.states._name(words, one.changes)
    assert other.states._name_compiled(same, other.changes) == (left, unknown)
    assert words[:left].tolist() == same[:left].tolist()
    assert one.everything() == other.everything()


@given(st.integers(0, 2**32), st.integers(0, 60))
def test_buckets_of_quiet_slots(seed: int, before: int) -> None:
    one, other = Slots(seed), Slots(seed)
    words, same = np.zeros((one.states.live, 3), np.uint64), np.zeros((one.states.live, 3), np.uint64)
    count = one.states._take(before, words)
    assert other.states._take_compiled(before, same) == count
    assert words.tolist() == same.tolist()
    assert one.everything() == other.everything()


@given(st.integers(0, 2**32), st.integers(0, 40))
def test_bytes_of_flows_without_an_id(seed: int, count: int) -> None:
    one, other = Slots(seed), Slots(seed)
    listed, same = one.unnamed._count(one.records(count)), other.unnamed._count_compiled(other.records(count))
    assert set(listed.tolist()) == set(same.tolist())
    assert one.unnamed._bytes.tolist() == other.unnamed._bytes.tolist()


@given(st.integers(0, 2**32), st.integers(0, 40), st.sampled_from(("V24", "V40")))
def test_numbers_of_names(seed: int, count: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    names = np.frombuffer(rng.bytes(30 * np.dtype(dtype).itemsize), dtype)
    numbers = {name: int(number) for name, number in zip(names.tolist(), rng.integers(0, U32, 15), strict=False)}
    asked = names[rng.integers(0, len(names), count)]
    assert _numbers_of(numbers, asked).tolist() == [numbers.get(name, 0) for name in asked.tolist()]


def slot_arguments() -> dict[str, Any]:
    slots = Slots(1)
    return {
        "words": slots.records(5),
        "slots": slots.arrays,
        "kernel": slots.memory.slots,
        "changes": slots.changes.columns,
        "recovered": slots.states.recovered,
        "live": np.zeros(5, np.intp),
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"words": np.full((5, 3), 2**63, np.uint64) >> np.uint64(40)},
        {"words": np.full((5, 3), 16, np.uint64)},
        {"words": np.zeros((5, 2), np.uint64)},
        {"words": np.zeros((6, 3), np.uint64)},
        {"slots": Slots(1).arrays[:3]},
        {"slots": Slots(1).arrays._replace(flows=np.zeros(17, np.uint32))},
        {"slots": Slots(1).arrays._replace(taken=np.zeros(16, FLOW_KEY))},
        {"slots": None},
        {"kernel": np.zeros(15, Slots(1).memory.slots.dtype)},
        {"changes": ()},
        {"changes": (np.zeros(2, np.uint32), np.zeros(3, np.uint16), np.zeros(2, np.uint32))},
        {"changes": None},
        {"recovered": np.zeros((0, 3), np.int64)},
        {"recovered": np.zeros((6, 2), np.int64)},
        {"live": np.zeros(4, np.intp)},
    ],
)
def test_records_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    compiled.name_records(*slot_arguments().values())
    with pytest.raises((ValueError, TypeError, BufferError)):
        compiled.name_records(*(slot_arguments() | wrong).values())


def test_slots_that_are_none_are_refused() -> None:
    slots = Slots(1)
    words, live = np.zeros((2, 3), np.uint64), np.zeros(2, np.intp)
    for wrong in (np.array([0, 16]), np.array([-1, 0]), np.zeros(3, np.intp), live.astype("i4")):
        with pytest.raises((ValueError, TypeError, BufferError)):
            compiled.take_quiet(slots.memory.slots, slots.arrays, wrong, 100, words)
    arrays = slots.unnamed._kind, slots.arrays.generations, slots.unnamed._bytes
    assert compiled.count_unnamed(words, *arrays, LARGE_BYTES, live) >= 0
    for records, listed in ((np.full((2, 3), 16, np.uint64), live), (words, live[:1]), (words[:1], live)):
        with pytest.raises((ValueError, BufferError)):
            compiled.count_unnamed(records, *arrays, LARGE_BYTES, listed)
    numbers, found = {bytes(24): 7}, np.zeros(2, np.uint32)
    for names, size, out in ((np.zeros(2, "V24"), 23, found), (np.zeros(3, "V24"), 24, found), (None, 24, found)):
        with pytest.raises((ValueError, TypeError, BufferError)):
            compiled.numbers_of(numbers, names, size, out)
    for number in (-1, 2**70, "seven"):
        with pytest.raises((OverflowError, TypeError)):
            compiled.numbers_of({bytes(24): number}, np.zeros(2, "V24"), 24, found)


# --- calls of training libraries


@given(st.integers(0, 2**32), st.integers(0, 60), st.sampled_from((1, 3, 2**64)))
def test_calls_of_works(seed: int, count: int, addresses: int) -> None:
    rng = np.random.default_rng(seed)
    known = rng.integers(0, addresses, max(1, count // 4), np.uint64)
    work, role = rng.choice(known, count), rng.integers(0, 5, count).astype(np.uint8)
    works = Works(work, role)
    expected = _pair_works(work, role, np.flatnonzero(role == BEGINS))
    for one, other in zip((works.over, works.awaited, works.again), expected, strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("begun", [0, 1, 3])
def test_other_works_than_are_wanted_are_refused(begun: int) -> None:
    out = [np.empty(begun, np.intp), np.empty(begun, np.intp), np.empty(begun, np.uint8)]
    with pytest.raises(ValueError, match="works than are wanted"):
        compiled.pair_works(np.zeros(4, np.uint64), np.array([BEGINS, BEGINS, 2, 3], np.uint8), *out)


@pytest.mark.parametrize("place", range(5))
def test_works_that_do_not_fit_are_refused(place: int) -> None:
    fitting = [np.zeros(2, np.uint64), np.ones(2, np.uint8), *(np.empty(2, kind) for kind in ("i8", "i8", "u1"))]
    compiled.pair_works(*fitting)
    wrong = list(fitting)
    wrong[place] = np.zeros(3, wrong[place].dtype) if place < 2 else np.zeros(2, np.uint16)
    with pytest.raises(ValueError, match=r"an array of|works than"):
        compiled.pair_works(*wrong)
