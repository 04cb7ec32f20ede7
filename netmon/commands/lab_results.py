# SPDX-License-Identifier: Apache-2.0
"""What `netmon lab` prints when a run is over."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netmon.own_module import typed
from netmon.units import format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    from rich.console import Console


def print_run(data: Path, document: Mapping[str, Any], console: Console) -> None:
    """A run, as netmon.lab.outcome.run_document() gives it, with the summary of its dataset."""
    from netmon.report.summary import summarise

    monitored = document["spec"]["monitor"]
    if monitored:
        summarise(data).print(console)
    for line in (*_model(document["spec"]), *_cross(document["cross"]), _log(document["log"])):
        console.print(line, soft_wrap=True)
    if monitored:
        if not document["sources"]:
            console.print("iterations found: none, by any source")
        for source in document["sources"]:
            _print_source(source, console)
        for score in document["scores"]:
            console.print(_score(score), soft_wrap=True)
        console.print(_classes(document["classification"]), soft_wrap=True)
        _print_next(data, console)


def _model(spec: Mapping[str, Any]) -> list[str]:
    if not spec["model"]:
        return []
    return [
        f"model: {spec['model']}, its tensors × {spec['size_scale']:g} (the link's rate / 10 Gbit/s), computing "
        f"{format_duration(spec['compute_ns'])} for {spec['batch']} samples, derived from published times of a V100"
    ]


def _cross(senders: list[dict[str, Any]]) -> list[str]:
    return [_sender(sender) for sender in senders if "bytes_sent" in sender]


def _sender(sender: Mapping[str, Any]) -> str:
    line = f"cross traffic, by its sender: {sender['from']} to {sender['to']}, {format_bytes(sender['bytes_sent'])}"
    if "achieved_bps" in sender:
        offered = sender["bytes_offered"] * 8 / sender["seconds"]
        line += f" in {sender['flows']} flows, {format_rate(sender['achieved_bps'])} of {format_rate(offered)} offered"
    if sender.get("lateness_us"):
        late = [format_duration(1000 * sender["lateness_us"][share]) for share in ("median", "p99")]
        line += f", begun {late[0]} late (median; p99 {late[1]})"
    return line


def _log(log: Mapping[str, Any]) -> str:
    lines = [
        f"{log[which]['iterations']} iterations {when} cross traffic, median {format_duration(log[which]['median_ns'])}"
        for which, when in (("quiet", "without"), ("disturbed", "with"))
        if log[which]["iterations"]
    ]
    return f"the trainers' own log: {'; '.join(lines)}"


def _print_source(source: Mapping[str, Any], console: Console) -> None:
    console.print(
        f"{source['source']}: iterations found: {source['found']} of {source['logged']}, invented: {source['invented']}"
    )
    for moment, errors in source["errors"].items():
        median, p99, worst = (format_duration(errors[f"{name}_ns"]) for name in ("median", "p99", "largest"))
        left_out = (
            f"; {errors['left_out']} left out, whose timestamp was delayed by preemption" if errors["left_out"] else ""
        )
        console.print(
            f"  {moment} against the log: median {median}, p99 {p99}, largest {worst}{left_out}", soft_wrap=True
        )


def _score(score: Mapping[str, Any]) -> str:
    return (
        f"{score['source']} against {score['reference']}: {score['matched']} of the last {score['iterations']} "
        f"iterations, {score['found'] - score['matched']} others, F1 {score['f1']:.3f}, "
        f"median distance {format_duration(score['error_ns'])}"
    )


def _classes(known: Mapping[str, Any]) -> str:
    return (
        f"bytes in the right class: {known['right_share']:.4%}; "
        f"wrong: {format_bytes(known['wrong_bytes'])}, unclassified: {format_bytes(known['unclassified_bytes'])}"
    )


def _print_next(data: Path, console: Console) -> None:
    data, netmon = _short(data), typed("netmon")
    console.print(
        f"dataset: {data}; next:\n"
        f"  {netmon} why --data {data}\n"
        f"  {netmon} report {data} --out {data}/report\n"
        f"  {netmon} export --data {data} --out iterations.csv\n"
        f"  {typed('python')} -c \"import pandas; print(pandas.read_parquet('{data}/iterations'))\"",
        soft_wrap=True,
    )


def _short(data: Path) -> Path:
    with contextlib.suppress(ValueError):
        return data.relative_to(Path.cwd())
    return data
