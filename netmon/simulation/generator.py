# SPDX-License-Identifier: Apache-2.0
"""A generator that is fitted to a recorded job: in which phases it communicates, how much, and how long it pauses.

An iteration is a number of phases; in each, every rank waits for its own gap after it has finished the phase before,
and then sends its bytes to its peers and receives theirs. Sizes are medians; gaps are kept as they were, iteration by
iteration, so that what ranks have in common stays. `netmon lab run --replay FILE` plays it.
"""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from netmon.dl.generated import Generator, Phase
from netmon.errors import DataError
from netmon.history.dataset import Window, frame_of, open_rows
from netmon.simulation.traffic import buckets_of, flows_of, pieces_of
from netmon.units import format_bytes, format_duration

SILENCE_NS = 3_000_000
"""Phases are apart by at least so much in which no rank sends gradients."""
_MOST_ITERATIONS = 200
_FEWEST = 3
_ITERATION = ["job", "rank", "size", "iteration", "start_ns", "end_ns"]

Numbers = npt.NDArray[np.int64]


def write_generator(data: Path, window: Window, out: Path) -> str:
    """Write OUT; what was fitted, in words. Raises DataError, OSError."""
    generator, used, of = fit(data, window)
    out.write_text(json.dumps(generator.document(), indent=1) + "\n")
    sizes = ", ".join(format_bytes(sum(phase.bytes.values())) for phase in generator.phases)
    about = f"{generator.ranks} ranks, {format_duration(generator.iteration_ns)} an iteration"
    phases = f"{len(generator.phases)} phases ({sizes})"
    return f"{out}: {about}, {phases}, fitted to {used} of {of} iterations"


def fit(data: Path, window: Window) -> tuple[Generator, int, int]:
    """The generator, how many iterations it rests on and of how many. Raises DataError."""
    iterations = _iterations(data, window)
    job = str(iterations["job"].iloc[0])
    flows = _gradients(flows_of(data, window), job, data)
    sent = buckets_of(data, window, flows)
    sent = sent[sent["payload_bytes"] > 0]
    whole = pieces_of(sent.assign(flow=0).sort_values("bucket_start_ns", kind="stable"), SILENCE_NS)
    spans = iterations.groupby("iteration").agg(start=("start_ns", "min"), end=("end_ns", "max")).sort_values("start")
    phase_of = (
        np.searchsorted(spans["start"].to_numpy(np.int64), whole["start_ns"].to_numpy(np.int64), side="right") - 1
    )
    inside = phase_of >= 0
    whole, phase_of = whole[inside], phase_of[inside]
    count = Counter(np.bincount(phase_of, minlength=len(spans)).tolist())
    count.pop(0, None)
    if not count:
        raise DataError(f"cannot fit a generator: {data} holds no gradients of job {job} in its iterations")
    most_common = count.most_common(1)[0][0]
    fits = [index for index in range(len(spans)) if (phase_of == index).sum() == most_common]
    if len(fits) < _FEWEST:
        raise DataError(f"cannot fit a generator to {len(fits)} iterations that are alike; it takes {_FEWEST}")
    fits = fits[:_MOST_ITERATIONS]
    return _fitted(job, iterations, spans, flows, sent, whole, phase_of, fits), len(fits), len(spans)


def _fitted(
    job: str,
    iterations: pd.DataFrame,
    spans: pd.DataFrame,
    flows: pd.DataFrame,
    sent: pd.DataFrame,
    whole: pd.DataFrame,
    phase_of: Numbers,
    fits: list[int],
) -> Generator:
    """spans: of the iterations by index. whole: phases; phase_of: the place of each one's iteration."""
    ranks = int(iterations["size"].max())
    pair = flows["rank"].to_numpy(np.int64) * ranks + flows["peer_rank"].to_numpy(np.int64)
    starts, ends = (sent[name].to_numpy(np.int64) for name in ("bucket_start_ns", "bucket_ns"))
    ends = starts + ends
    payload, pairs = sent["payload_bytes"].to_numpy(np.int64), pair[sent["flow"].to_numpy()]
    sizes, gaps, after = [], [], []
    for index in fits:
        before = _of_ranks(iterations, spans.index[index], ranks, "start_ns", "min")
        own_sizes, own_gaps = [], []
        for begin, end in whole.loc[phase_of == index, ["start_ns", "end_ns"]].to_numpy(np.int64).tolist():
            low, high = np.searchsorted(starts, (begin, end))
            inside = slice(int(low), int(high))
            own_sizes.append(np.bincount(pairs[inside], payload[inside], ranks * ranks))
            first, last = np.full(ranks, begin), np.full(ranks, end)
            for rank in range(ranks):
                sends = pairs[inside] // ranks == rank
                takes = sends | (pairs[inside] % ranks == rank)
                if sends.any():
                    first[rank] = starts[inside][sends].min()
                if takes.any():
                    last[rank] = ends[inside][takes].max()
            own_gaps.append(np.maximum(0, first - before))
            before = last
        finished = _of_ranks(iterations, spans.index[index], ranks, "end_ns", "max")
        sizes.append(own_sizes)
        gaps.append(own_gaps)
        after.append(np.maximum(0, finished - before))
    median = np.median(np.array(sizes), axis=0).round().astype(np.int64)
    phases = tuple(
        Phase({(int(p) // ranks, int(p) % ranks): int(row[p]) for p in np.flatnonzero(row)}) for row in median
    )
    took = spans["end"].to_numpy(np.int64) - spans["start"].to_numpy(np.int64)
    all_gaps = np.array(gaps).astype(np.int64)  # iteration, phase, rank
    return Generator(job, ranks, phases, all_gaps, np.array(after), int(np.median(took[fits])))


def _of_ranks(iterations: pd.DataFrame, number: object, ranks: int, column: str, default: str) -> Numbers:
    """A moment of each rank; of one that did not report, the earliest or latest of the others."""
    own = iterations[iterations["iteration"] == number]
    found = np.full(ranks, int(getattr(own[column], default)()))
    found[own["rank"].to_numpy(np.int64)] = own[column].to_numpy(np.int64)
    return found


def _iterations(data: Path, window: Window) -> pd.DataFrame:
    files, condition = open_rows(data, "iterations", window)
    rows = frame_of(files, _ITERATION, condition)
    rows = rows[rows["rank"] >= 0]
    if rows.empty:
        raise DataError(f"cannot fit a generator: {data} holds no iteration there whose rank is known")
    if len(jobs := sorted(set(rows["job"]))) > 1:
        raise DataError(f"cannot fit one generator to several jobs, {', '.join(jobs)}: give --job")
    size = max(int(rows["size"].fillna(0).max()), int(rows["rank"].max()) + 1)
    once: pd.DataFrame = rows.assign(size=size).drop_duplicates(["rank", "iteration"])
    return once


def _gradients(flows: pd.DataFrame, job: str, data: Path) -> pd.DataFrame:
    """From rank to rank. A flow that only its receiver saw has its ends the other way round."""
    own = flows[(flows["job"] == job) & (flows["traffic"] != "control")]
    own = own[own["rank"].notna() & (own["rank"] >= 0)].reset_index(drop=True)
    sent = own["direction"] == "tx"
    here, there = (np.where(sent, own[a], own[b]) for a, b in (("src", "dst"), ("dst", "src")))
    local = own["rank"].to_numpy(np.int64)
    peers = own["peer_rank"].fillna(-1).to_numpy(np.int64)
    remote = np.where(peers >= 0, peers, pd.Series(there).map(_ranks_alone(here, local)).fillna(-1).to_numpy(np.int64))
    ends = {"rank": np.where(sent, local, remote), "peer_rank": np.where(sent, remote, local)}
    known: pd.DataFrame = own.assign(**ends)[(remote >= 0) & (remote != local)].reset_index(drop=True)
    if known.empty:
        raise DataError(f"cannot fit a generator: {data} tells of no flow between ranks of job {job}")
    return known


def _ranks_alone(addresses: npt.NDArray[np.object_], ranks: Numbers) -> dict[str, int]:
    """The rank at each address that has one rank only."""
    found = pd.DataFrame({"address": addresses, "rank": ranks}).drop_duplicates()
    return {str(a): int(r) for a, r in found.drop_duplicates("address", keep=False).itertuples(index=False)}
