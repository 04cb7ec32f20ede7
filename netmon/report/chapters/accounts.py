# SPDX-License-Identifier: Apache-2.0
"""What the figures rest on: runs, links, byte accounts, NIC counters."""

import pandas as pd

from netmon.report.study import Chapter, Exhibit, Frames, Study, need


def _run_frames(study: Study) -> Frames:
    runs = need(study.runs, "there is no run, and no iteration to make one from")
    if study.ranks.empty:
        return {"runs": runs}
    seen = study.all_times.groupby("run").agg(iterations=("time_s", "size"), median_s=("time_s", "median"))
    return {"runs": runs.join(seen, on="run")}


def _owner_frames(study: Study) -> Frames:
    """Whose the bytes are: by class, process, container and how it is known."""
    flows = need(study.flows, "the table flows is missing, or none of its flows has a bucket")
    by = [name for name in ("class", "process", "container", "class_source", "traffic") if name in flows]
    sums = flows.fillna(dict.fromkeys(by, "")).groupby(by, as_index=False)
    owners = sums.agg(flows=("flow_id", "size"), wire_bytes=("wire_bytes", "sum"))
    return {"owners": owners.sort_values("wire_bytes", ascending=False, ignore_index=True)}


_COUNTER = ["host", "device", "source", "counter"]


def _nic_frames(study: Study) -> Frames:
    """How much each counter of each device grew."""
    grown = need(study.tables.growth("nic", _COUNTER, "time_ns", "value"), "the dataset has no table nic")
    grown = grown.assign(growth=grown["last"] - grown["first"])
    return {"counters": grown[grown["growth"] > 0].reset_index(drop=True)}


_PORT_SENT = ("port_xmit_bytes", "sent_bytes", "tx_bytes")  # in the order of preference: InfiniBand's own, rxe's, EFA's
_PORT_RECEIVED = ("port_rcv_bytes", "rcvd_bytes", "rx_bytes")


def _port_frames(study: Study) -> Frames:
    """RDMA ports: what they counted, and who posted how much of it."""
    grown = study.tables.growth("nic", _COUNTER, "time_ns", "value")
    of_ports = need(grown[grown["source"] == "rdma"], "no host had an RDMA port")
    of_ports = of_ports.assign(growth=of_ports["last"] - of_ports["first"])
    counted = of_ports.pivot_table(index=["host", "device"], columns="counter", values="growth", aggfunc="sum")
    ports = pd.DataFrame(
        {
            name: counted.reindex(columns=of_kind).bfill(axis=1).iloc[:, 0]
            for name, of_kind in (("sent_bytes", _PORT_SENT), ("received_bytes", _PORT_RECEIVED))
        }
    ).reset_index()
    posted = study.tables.sums("rdma", ["host", "rdma_device", "job", "verb"], ["bytes"])
    posted["what"] = "by_others_bytes"
    posted.loc[posted["job"] != "", "what"] = "by_ranks_bytes"
    posted.loc[posted["verb"] == "read", "what"] = "reads_bytes"
    sums = posted.pivot_table(index=["host", "rdma_device"], columns="what", values="bytes", aggfunc="sum")
    names = ["by_ranks_bytes", "by_others_bytes", "reads_bytes"]
    ports = ports.assign(rdma_device=ports["device"].str.partition("/")[0])
    ports = ports.join(sums.reindex(columns=names), on=["host", "rdma_device"]).drop(columns="rdma_device")
    ports[names] = ports[names].fillna(0)
    ports["rest_bytes"] = ports["sent_bytes"] - ports["by_ranks_bytes"] - ports["by_others_bytes"]
    return {"ports": ports}


def coverage(accounts: pd.DataFrame) -> float:
    """Attributed bytes of all links over those of their NICs' counters."""
    return float(accounts["attributed_bytes"].sum() / accounts["nic_bytes"].sum())


CHAPTER = Chapter(
    "What it rests on",
    (
        Exhibit("runs", "Runs", "", "As the lab wrote them down; one per job where no lab was.", _run_frames, rows=60),
        Exhibit(
            "owners", "Whose the bytes are", "", "Largest first; both ends of a flow count.", _owner_frames, rows=20
        ),
        Exhibit(
            "nic-counters", "NIC counters", "thesis, counter script", "Growth over the dataset.", _nic_frames, rows=40
        ),
        Exhibit(
            "rdma-ports",
            "RDMA ports",
            "",
            "What each port counted, and what was posted on its device to be sent: by ranks and by others. The rest is "
            "headers, what is sent again, answers to other hosts' reads, and what nobody posted by libibverbs. Own "
            "reads are among what was received.",
            _port_frames,
            rows=40,
        ),
    ),
)
