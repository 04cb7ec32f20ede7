# SPDX-License-Identifier: Apache-2.0
"""Why one iteration took as long as it did, for a notebook."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape

import pandas as pd

from netmon.dl.verdict import path_of
from netmon.dl.verdict.verdict_text import arithmetic, columns, sentence
from netmon.views import RankTimes, Verdict


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
        """One sentence."""
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
        """For a notebook's cell."""
        table = self.ranks.to_html(index=False) if len(self.ranks) else ""
        return f"<pre>{escape(str(self))}</pre>{table}"


def verdict_rows(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """A row each, with the columns of the table `verdicts` and the sentence; moments as timestamps."""
    rows = pd.DataFrame([{**columns(one), "sentence": sentence(one)} for one in verdicts])
    if rows.empty:
        rows = pd.DataFrame(columns=[*columns(_NOTHING), "sentence"])
    for name in ("start", "end", "told"):
        moment = rows.pop(f"{name}_ns")
        moments = pd.to_datetime(moment.where(moment != 0), unit="ns", utc=True)
        rows.insert(len(rows.columns) if name == "told" else 2 + (name == "end"), name, moments)
    return rows


_NOTHING = Verdict("", -1, 0, 0, 0, 0, 0)
