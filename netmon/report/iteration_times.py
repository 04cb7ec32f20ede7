# SPDX-License-Identifier: Apache-2.0
"""How long iterations took, and how much cross traffic they met."""

import numpy as np
import pandas as pd

from netmon.history.frames import groups, records

TIME_COLUMNS = (
    *("run", "job", "iteration", "start_ns", "end_ns", "time_s", "communication_s", "exposed_s", "dl_tx_bytes"),
    *("cross_bytes", "busiest_bytes", "node_shared", "ranks_seen", "size"),
)
LEVEL_COLUMNS = (
    *("model", "profile", "level", "iterations", "measured", "median_s", "mean_s", "low_s", "high_s", "p01_s", "p99_s"),
    *("dl_tx_bytes", "busiest_share", "rate_bps"),
)
NS_PER_S = 1_000_000_000
_LEVEL_STEP = 0.1  # to which a measured level is rounded, where nobody knows the offered one


def iteration_times(ranks: pd.DataFrame) -> pd.DataFrame:
    """One row per run, job and iteration, from rows per rank (table `iterations` with a column `run`).

    time_s: of the slowest rank, as synchronous training waits for it (the iteration time of the thesis' figures).
    communication_s: first enqueue to last wait of the slowest rank, nan where not known. dl_tx_bytes: mean payload that
    a rank sent. cross_bytes: payload of cross traffic on the busiest link of any rank's host. ranks_seen: of `size`.
    """
    if ranks.empty:
        return pd.DataFrame(columns=list(TIME_COLUMNS), dtype=float)
    rows = ranks.assign(
        node_shared=ranks["node_shared"].eq(True),
        time_s=(ranks["end_ns"] - ranks["start_ns"]) / NS_PER_S,
        communication_s=_seconds(ranks, "comm_start_ns", "comm_end_ns"),
        exposed_s=_known_seconds(ranks["exposed_ns"]),
        cross_bytes=ranks[["cross_tx_bytes", "cross_rx_bytes"]].max(axis=1),
        busiest_bytes=np.maximum(
            ranks["cross_tx_bytes"] + ranks["dl_tx_bytes"], ranks["cross_rx_bytes"] + ranks["dl_rx_bytes"]
        ),
    )
    return (
        rows.groupby(["run", "job", "iteration"], sort=False)
        .agg(
            start_ns=("start_ns", "min"),
            end_ns=("end_ns", "max"),
            time_s=("time_s", "max"),
            communication_s=("communication_s", "max"),
            exposed_s=("exposed_s", "max"),
            dl_tx_bytes=("dl_tx_bytes", "mean"),
            cross_bytes=("cross_bytes", "max"),
            busiest_bytes=("busiest_bytes", "max"),
            node_shared=("node_shared", "max"),
            ranks_seen=("rank", "nunique"),
            size=("size", "max"),
        )
        .reset_index()
        .sort_values("start_ns", ignore_index=True)
    )


def _seconds(rows: pd.DataFrame, begin: str, end: str) -> pd.Series:
    return (rows[end].astype(float) - rows[begin].astype(float)) / NS_PER_S


def _known_seconds(nanoseconds: pd.Series) -> pd.Series:
    known = nanoseconds.astype(float)
    return known.where(known >= 0) / NS_PER_S


def without_warm_up(times: pd.DataFrame) -> pd.DataFrame:
    """Without each job's first iteration, in which connections open and congestion windows grow."""
    return times[times.groupby(["run", "job"])["iteration"].rank(method="first") > 1].reset_index(drop=True)


def add_levels(times: pd.DataFrame, runs: pd.DataFrame, senders: pd.DataFrame) -> pd.DataFrame:
    """Adds model, profile, rate_bps, measured, offered and level to rows of iteration_times.

    measured: cross_bytes as a rate, as a share of the link's capacity C; nan where C is not known.
    offered: what the lab offered to the most loaded host during the whole iteration, as a share of C; nan where the
    cross traffic began or ended within it, or nobody knows. level: offered where known; measured, rounded to 0.1, in
    runs without a lab.
    """
    levels = runs[["run", "job", "model", "profile", "rate_bps"]].astype({"run": object, "job": object})
    known = times.astype({"run": object, "job": object}).merge(levels, on=["run", "job"], how="left")
    capacity = known["rate_bps"].where(known["rate_bps"] > 0)
    known["measured"] = known["cross_bytes"] * 8 / known["time_s"] / capacity
    known["offered"] = np.nan
    for (run,), rows in groups(known, "run"):
        if runs.loc[runs["run"] == run, "level"].notna().all():
            offered = _offered(rows, senders[senders["run"] == run])
            known.loc[rows.index, "offered"] = offered / rows["rate_bps"]
    in_lab = known["run"].isin(runs.loc[runs["level"].notna(), "run"])
    rounded = (known["measured"] / _LEVEL_STEP).round() * _LEVEL_STEP
    known["level"] = known["offered"].where(in_lab, rounded).round(6)
    return known


def _offered(rows: pd.DataFrame, senders: pd.DataFrame) -> pd.Series:
    """bit/s to the most loaded host while each iteration lasts; nan where a sender began or ended within it."""
    by_target: dict[str, pd.Series] = {}
    partly = pd.Series(False, rows.index)
    for sender in records(senders):
        touches = (rows["start_ns"] < sender.end_ns) & (rows["end_ns"] > sender.begin_ns)
        within = (rows["start_ns"] >= sender.begin_ns) & (rows["end_ns"] <= sender.end_ns)
        partly |= touches & ~within
        target = str(sender.target)
        by_target[target] = by_target.get(target, pd.Series(0.0, rows.index)) + within * float(sender.offered_bps)
    most = pd.concat(by_target.values(), axis=1).max(axis=1) if by_target else pd.Series(0.0, rows.index)
    return most.mask(partly)


def level_statistics(times: pd.DataFrame) -> pd.DataFrame:
    """Iteration time by model, profile and level: the data of the thesis' figures 3-2, 3-3, 3-4 and 3-6.

    Takes rows of add_levels, gives iterations, median_s, mean_s with its 95 % confidence interval (Student's t), p01_s
    and p99_s (99 % tails), measured (mean), dl_tx_bytes (median). The quiet iterations of a model belong to each of
    its profiles.
    """
    from netmon.report.estimates import mean_confidence

    rows = [
        {
            **dict(zip(("model", "profile", "level"), key, strict=True)),
            "iterations": len(group),
            "measured": group["measured"].mean(),
            "median_s": group["time_s"].median(),
            **dict(zip(("mean_s", "low_s", "high_s"), mean_confidence(group["time_s"].to_numpy()), strict=True)),
            "p01_s": group["time_s"].quantile(0.01),
            "p99_s": group["time_s"].quantile(0.99),
            "dl_tx_bytes": group["dl_tx_bytes"].median(),
            "busiest_share": (group["busiest_bytes"] * 8 / group["time_s"] / group["rate_bps"]).mean(),
            "rate_bps": group["rate_bps"].median(),
        }
        for key, group in groups(quiet_in_every_profile(times), "model", "profile", "level")
    ]
    return pd.DataFrame(rows, columns=list(LEVEL_COLUMNS))


def quiet_in_every_profile(times: pd.DataFrame) -> pd.DataFrame:
    """The rows with a level, with those of level 0 repeated for each profile of their model."""
    known = times[times["level"].notna()]
    quiet, loaded = known[known["level"] == 0], known[known["level"] > 0]
    if loaded.empty:
        return quiet.assign(profile="none")
    profiles = loaded[["model", "profile"]].drop_duplicates()
    repeated = quiet.drop(columns="profile").merge(profiles, on="model", how="left").fillna({"profile": "none"})
    return pd.concat([repeated, loaded], ignore_index=True)
