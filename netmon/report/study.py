# SPDX-License-Identifier: Apache-2.0
"""Everything that the report draws on, read once."""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from netmon.dl.sharing.advice import Advice
from netmon.history.dataset import Tables
from netmon.history.frames import groups
from netmon.history.job_names import names_of
from netmon.history.judging import stored_verdicts
from netmon.report.congestion import CongestionPoint, congestion_point, congestion_theory
from netmon.report.iteration_times import add_levels, iteration_times, level_statistics, without_warm_up
from netmon.report.runs import SIZE
from netmon.report.scan import Traffic
from netmon.report.summary import ACCOUNT_COLUMNS, LINK, link_accounts
from netmon.views import Verdict

_ADVISED_S = 60.0
_MOST_JOBS = 64  # that are compared with each other


@dataclass(frozen=True)
class Study:
    """A dataset, read. Times in ns of UTC, rates in bit/s; see the functions that make the frames for their columns."""

    tables: Tables
    runs: pd.DataFrame  # runs.RUN_COLUMNS
    senders: pd.DataFrame  # runs.SENDER_COLUMNS
    ranks: pd.DataFrame  # table iterations, with run
    flows: pd.DataFrame  # table flows, with run, class and sums; one row per flow and class
    traffic: Traffic | None
    rate_bps: float  # capacity C of a link; 0: not known
    bucket_ns: int
    interval_ns: int  # least interval in which a rate is true: the bucket, or one super-packet on the link

    @cached_property
    def job_names(self) -> dict[str, str]:
        """What people call each job, no two alike."""
        return names_of(self.ranks)

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """What `told` gives of all its iterations."""
        return stored_verdicts(self.tables.data)

    @cached_property
    def accounts(self) -> pd.DataFrame:
        """link_accounts of the table ledger."""
        return link_accounts(self.tables.sums("ledger", LINK, ACCOUNT_COLUMNS))

    @cached_property
    def all_times(self) -> pd.DataFrame:
        """iteration_times with levels, the first iterations included."""
        return add_levels(iteration_times(self.ranks), self.runs, self.senders)

    @cached_property
    def times(self) -> pd.DataFrame:
        """The same without each job's first iteration."""
        return without_warm_up(self.all_times)

    @cached_property
    def levels(self) -> pd.DataFrame:
        """level_statistics of the runs."""
        return level_statistics(self.times)

    @cached_property
    def congestion(self) -> dict[tuple[str, str], CongestionPoint]:
        """By model and profile."""
        return {
            key: congestion_point(rows["level"], rows["median_s"]) for key, rows in by_profile(self.levels) if len(rows)
        }

    @cached_property
    def advice(self) -> Advice:
        """On jobs that share links, in the last minute. Raises DataError where there is nothing in it."""
        from netmon.history.advice import advice

        jobs = [str(job) for job in self.ranks["job"].unique()] if len(self.ranks) else []
        return advice(self.tables.data, _ADVISED_S, jobs=jobs if len(jobs) == 1 else (), most=_MOST_JOBS)

    def congestion_in_theory(self, model: str, profile: str) -> float:
        """1 − 8·D/(t₀·C), with D by equation 3.1 where the model's size is known, else as measured."""
        rows = self.levels[(self.levels["model"] == model) & (self.levels["profile"] == profile)]
        quiet = rows[rows["level"] == 0]
        if quiet.empty:
            return float("nan")
        return congestion_theory(self.step_bytes(model), float(quiet["median_s"].iloc[0]), self.rate_of(model))

    def step_bytes(self, model: str) -> float:
        """Bytes that a rank sends per iteration: equation 3.1, or the measured median where it cannot be known."""
        from netmon.dl.theory import ring_bytes

        run = self.runs[self.runs["model"] == model].iloc[0]
        theory = ring_bytes(*(int(run[name]) for name in SIZE)) if run["pattern"] in ("ring", None) else None
        if theory is not None and theory > 0:
            return theory
        return float(self.times.loc[self.times["model"] == model, "dl_tx_bytes"].median())

    def rate_of(self, model: str) -> float:
        """Capacity of the links on which the model's runs trained."""
        return float(self.runs.loc[self.runs["model"] == model, "rate_bps"].median())

    @cached_property
    def focus(self) -> str:
        """The run that figures of single runs show: the one with the most cross traffic up to 80 %, else the longest.

        Empty where no run has an iteration.
        """
        if self.times.empty:
            return ""
        runs = self.times.groupby("run").agg(load=("measured", "max"), level=("level", "max"), rows=("time_s", "size"))
        eligible = runs[runs["level"].fillna(0) <= 0.8]
        chosen = eligible if len(eligible) else runs
        return str(chosen.fillna(0).sort_values(["level", "load", "rows"]).index[-1])


def by_profile(table: pd.DataFrame) -> list[tuple[tuple[str, str], pd.DataFrame]]:
    """The rows of each model and profile."""
    return [((str(model), str(profile)), rows) for (model, profile), rows in groups(table, "model", "profile")]
