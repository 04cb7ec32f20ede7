# SPDX-License-Identifier: Apache-2.0
"""Several workers as one collector: what each of them shows, put together. Each host and job is with one of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from itertools import chain, zip_longest
from typing import Any, TypeVar

from netmon.views import JobView, LinkView, Page, Selection, Snapshot, Totals

_LARGEST = ("oldest_ns", "cpu_fraction", "rss_bytes", "clock_error_ns")  # of Totals; all others add up
T = TypeVar("T")


def from_each(selection: Selection) -> Selection:
    """What to ask every worker for, so that what is requested can be made of it."""
    return replace(
        selection,
        most_links=selection.most_links and selection.links_from + selection.most_links,
        most_jobs=selection.most_jobs and selection.jobs_from + selection.most_jobs,
        links_from=0,
        jobs_from=0,
    )


def merge(snapshots: Sequence[Snapshot], selection: Selection) -> Snapshot:
    """One snapshot of the workers' (at least one; as from_each asks for them).

    Where not all can come, the worst of each worker come first, then the second worst of each. A host or job that is
    on its way from one worker to another may be with both for a moment: the one that knows more of it counts.
    """
    found = [(host, n) for n, snapshot in enumerate(snapshots) for host in snapshot.hosts]
    best = _best(found, lambda one: one[0].host, lambda one: (one[0].connected, -one[0].age_ns))
    owner = {host.host: n for host, n in best}
    links = _together(
        [[link for link in s.links if owner.get(link.host, n) == n] for n, s in enumerate(snapshots)],
        _link_name if not selection.most_links else None,
    )
    jobs = _together([s.jobs for s in snapshots], _job_name if not selection.most_jobs else None)
    jobs = _best(jobs, _job_name, _job_news)
    flows = (flow for n, s in enumerate(snapshots) for flow in s.flows if owner.get(flow.host, n) == n)
    return replace(
        snapshots[0],
        time_ns=max(s.time_ns for s in snapshots),
        hosts=tuple(sorted((host for host, _ in best), key=lambda host: host.host)),
        links=tuple(_part(links, selection.links_from, selection.most_links)),
        jobs=tuple(_part(jobs, selection.jobs_from, selection.most_jobs)),
        flows=tuple(sorted(flows, key=lambda flow: -flow.wire_bps)[: selection.flows]),
        warnings=tuple(dict.fromkeys(chain.from_iterable(s.warnings for s in snapshots))),
        totals=_totals([s.totals for s in snapshots]),
        page=_page([s.page for s in snapshots], selection),
        insecure=any(s.insecure for s in snapshots),
        version=" ".join(sorted({s.version for s in snapshots})),
    )


def _job_name(view: JobView) -> str:
    return view.job


def _job_news(view: JobView) -> tuple[int, int]:
    return view.iteration, view.known_ranks or len(view.ranks)


def _link_name(view: LinkView) -> tuple[str, str, int]:
    return view.host, view.interface, view.direction


def _best(views: Iterable[T], name: Callable[[T], str], news: Callable[[T], tuple[int, int]]) -> list[T]:
    """One view of each name, in the order of their appearance."""
    best: dict[str, T] = {}
    for view in views:
        known = best.get(name(view))
        if known is None or news(view) > news(known):
            best[name(view)] = view
    return list(best.values())


def _together(parts: Sequence[Sequence[T]], by: Callable[[T], str | tuple[str, str, int]] | None) -> list[T]:
    """By name, or the first of each, then the second of each."""
    if by is not None:
        return sorted(chain.from_iterable(parts), key=by)
    return [view for turn in zip_longest(*parts) for view in turn if view is not None]


def _part(views: Sequence[T], begin: int, most: int) -> Sequence[T]:
    return views[begin : begin + most] if most else views[begin:]


def _totals(parts: Sequence[Totals]) -> Totals:
    added: dict[str, Any] = {}
    for field in fields(Totals):
        values = [getattr(part, field.name) for part in parts]
        if field.name == "class_bps":
            added[field.name] = tuple(sum(column) for column in zip_longest(*values, fillvalue=0.0))
        elif isinstance(values[0], tuple):
            added[field.name] = tuple(sorted(set(chain.from_iterable(values))))
        else:
            added[field.name] = max(values) if field.name in _LARGEST else sum(values)
    return replace(Totals(), **added)


def _page(parts: Sequence[Page], selection: Selection) -> Page:
    links, jobs = sum(part.links for part in parts), sum(part.jobs for part in parts)
    unknown = set(parts[0].unknown).intersection(*(part.unknown for part in parts))
    return Page(
        hosts=sum(part.hosts for part in parts),
        links=links,
        links_from=min(selection.links_from, links),
        jobs=jobs,
        jobs_from=min(selection.jobs_from, jobs),
        unknown=tuple(sorted(unknown)),
    )
