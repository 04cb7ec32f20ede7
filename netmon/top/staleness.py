# SPDX-License-Identifier: Apache-2.0
"""What an agent has not sent for a while is unknown, and must not look like the present."""

from dataclasses import replace

import numpy as np

from netmon.views import LAG_NS, FlowView, HostView, LinkView, Snapshot


def silent(host: HostView) -> bool:
    """Whether what the host's agent sent last is outdated."""
    return not host.connected or host.age_ns > LAG_NS


def present_links(snapshot: Snapshot) -> tuple[LinkView, ...]:
    """The links; those of a silent host with nan for every column since its agent's horizon."""
    ages = {host.host: host.age_ns for host in snapshot.hosts if silent(host)}
    return tuple(_continued(link, ages[link.host]) if link.host in ages else link for link in snapshot.links)


def present_flows(snapshot: Snapshot) -> tuple[FlowView, ...]:
    """The flows; those of a silent host with rate nan."""
    gone = {host.host for host in snapshot.hosts if silent(host)}
    return tuple(replace(view, wire_bps=np.nan) if view.host in gone else view for view in snapshot.flows)


def _continued(link: LinkView, age_ns: int) -> LinkView:
    columns, classes = link.wire_bps.shape
    missing = min(max(age_ns, 0) // max(link.interval_ns, 1), columns)
    unknown = np.full((missing, classes), np.nan)
    return replace(link, wire_bps=np.concatenate([link.wire_bps[missing:], unknown]))
