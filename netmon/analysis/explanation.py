# SPDX-License-Identifier: Apache-2.0
"""Why one iteration took as long as it did, for a notebook."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from html import escape

import pandas as pd

from netmon.dl.verdict import incidents, path_of
from netmon.dl.verdict.verdict_text import arithmetic, columns, sentence
from netmon.history.dataset import groups
from netmon.history.judging import worst_lines
from netmon.marks import harmless
from netmon.units import format_moment
from netmon.views import Incident, RankPair, RankTimes, Verdict


@dataclass(frozen=True)
class Explanation:
    """A verdict with its arithmetic; `print` it, or look at its parts. Times in ns."""

    verdict: Verdict
    ranks: pd.DataFrame  # a row per rank: where its time went, as `netmon.views.RankTimes`; empty: not known
    path: str = ""  # who waited for whom; empty: not known

    @classmethod
    def of(cls, verdict: Verdict, times: Sequence[RankTimes]) -> "Explanation":
        """times: of the ranks; none where nobody knows them."""
        rows = pd.DataFrame([asdict(each) for each in times])
        return cls(verdict, rows, (path_of(times, verdict) or "") if times else "")

    @property
    def sentence(self) -> str:
        return sentence(self.verdict)

    @property
    def arithmetic(self) -> list[str]:
        """What the excess over the baseline iterations is made of, line by line."""
        return list(arithmetic(self.verdict))

    def __str__(self) -> str:
        """What `netmon why --iteration` prints, without its table."""
        lines = [self.sentence, *(f"  {line}" for line in self.arithmetic), *([f"  {self.path}"] if self.path else [])]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        table = self.ranks.to_html(index=False) if len(self.ranks) else ""
        return f"<pre>{escape(str(self))}</pre>{table}"


def verdict_rows(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """A row each, with the columns of the table `verdicts` and the sentence; moments as timestamps."""
    rows = pd.DataFrame([{**columns(one), "sentence": sentence(one)} for one in verdicts])
    if rows.empty:
        rows = pd.DataFrame(columns=[*columns(_NOTHING), "sentence"])
    for name in ("start", "end", "reported"):
        moment = rows.pop(f"{name}_ns")
        moments = pd.to_datetime(moment.where(moment != 0), unit="ns", utc=True)
        rows.insert(len(rows.columns) if name == "reported" else 2 + (name == "end"), name, moments)
    return rows


def pair_rows(pairs: Mapping[str, Sequence[RankPair]]) -> pd.DataFrame:
    """A row per job and pair of ranks."""
    columns = [field.name for field in fields(RankPair)]
    rows = [(job, *(getattr(pair, name) for name in columns)) for job, own in pairs.items() for pair in own]
    return pd.DataFrame(rows, columns=["job", *columns])


def incident_rows(found: Sequence[Incident], names: Mapping[str, str]) -> pd.DataFrame:
    """A row each, with `line`, which says all of it in words; moments as timestamps. names: what people call jobs."""
    rows = pd.DataFrame([incidents.described(one, names, format_moment) for one in found])
    if rows.empty:
        one = incidents.incidents([replace(_NOTHING, excess_ns=1, baseline_ns=1)])[0]
        rows = pd.DataFrame(columns=[*incidents.described(one, names, format_moment)])
    for place, name in enumerate(("since", "until"), 1):
        rows.insert(place, name, pd.to_datetime(rows.pop(f"{name}_ns"), unit="ns", utc=True))
    return rows


def overview(title: str, facts: Mapping[str, str], found: Sequence[Incident], names: Mapping[str, str]) -> str:
    """What there is, and what went wrong: lines for a reader. names: what people call jobs."""
    said = worst_lines(found, names, _MOST_INCIDENTS)
    about = [f"{name}: {value}" for name, value in facts.items() if value]
    lines = [f"<{title}>", *about, *(["incidents:"] if said else ["no incidents"]), *(f"  {one}" for one in said)]
    return "\n".join(harmless(one).replace("\n", " ") for one in lines)


def job_rows(iterations: pd.DataFrame, found: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """A row per job. iterations: with start, end, duration_ns. found: what incident_rows gives."""
    rows = []
    for (job,), own in groups(iterations, "job"):
        slow = found[found["job"] == job]
        worst = slow.loc[slow["lost_ns"].idxmax(), "line"] if len(slow) else ""
        took = own.groupby("iteration")["duration_ns"].max()
        rows.append(
            {
                **{
                    "job": names.get(str(job), str(job)),
                    "hosts": own["host"].nunique(),
                    "ranks": own["rank"].nunique(),
                },
                **{"iterations": len(took), "start": own["start"].min(), "end": own["end"].max()},
                **{"median_ns": int(took.median()), "incidents": len(slow), "slow_steps": int(slow["steps"].sum())},
                **{"lost_ns": int(slow["lost_ns"].sum()), "worst": worst},
            }
        )
    return pd.DataFrame(rows)


def listed(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return (", ".join(names[:_MOST_NAMED]) or "none") + more


_MOST_INCIDENTS, _MOST_NAMED = 5, 8
_NOTHING = Verdict("", -1, 0, 0, 0, 0, 0)
