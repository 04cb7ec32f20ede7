# SPDX-License-Identifier: Apache-2.0
"""How much, from whom to whom, in flows of which size: the traffic-characteristics study."""

import pandas as pd

from netmon.records import CLASS_NAMES, Class
from netmon.report.exhibit import Chapter, Exhibit, Frames, GapError, need
from netmon.report.figures import volumes as draw
from netmon.report.flows import once_per_flow, size_class, who_sends_to_whom
from netmon.report.scan import Traffic
from netmon.report.study import Study

DL = (CLASS_NAMES[Class.DL_ONLY], CLASS_NAMES[Class.DL_SHARED])
_AMOUNTS = ["packets", "wire_bytes", "payload_bytes"]
NO_FLOWS = "the table flows is missing, or none of its flows has a bucket: it is not known who sends to whom"


def traffic_of(study: Study) -> Traffic:
    """What the pass over the buckets found. Raises GapError where there was no row."""
    if study.traffic is None:
        raise GapError("there is no row of buckets")
    return study.traffic


def _volume_frames(study: Study) -> Frames:
    rows = traffic_of(study).phases
    rows = rows[rows["job"] != ""]
    need(rows, "no row of buckets belongs to a job")
    sums = rows.groupby(["job", "direction", "class"], as_index=False)[_AMOUNTS].sum()
    iterations = study.all_times.groupby("job").size() if len(study.ranks) else pd.Series(dtype=int)
    return {"volume": sums.assign(iterations=sums["job"].map(iterations).fillna(0).astype(int))}


def training_pairs(study: Study) -> pd.DataFrame:
    """who_sends_to_whom of the training flows that carried payload. Raises GapError where there are none."""
    flows = need(study.flows, NO_FLOWS)
    dl = flows[flows["class"].isin(DL)]
    pairs = who_sends_to_whom(need(dl, "no flow is known to be a training job's"))
    return need(pairs[pairs["payload_bytes"] > 0], "no training flow carried payload")


def _heat_frames(study: Study) -> Frames:
    return {"pairs": training_pairs(study)}


def _size_frames(study: Study) -> Frames:
    """Flows and payload by class and size class; a flow with two classes counts with that of most of its bytes."""
    flows = once_per_flow(need(study.flows, NO_FLOWS))
    keys = ["session", "flow_id"]
    payload = flows.groupby(keys)["payload_bytes"].transform("sum")
    main = flows.assign(payload=payload).sort_values("payload_bytes").drop_duplicates(keys, keep="last")
    sizes = main.assign(size=size_class(main["payload"]))
    counted = sizes.groupby(["class", "size"], as_index=False).agg(
        flows=("flow_id", "size"), payload_bytes=("payload", "sum")
    )
    return {"sizes": counted}


CHAPTER = Chapter(
    "Traffic characteristics: volumes",
    (
        Exhibit(
            "volume",
            "Volume per job",
            "traffic characteristics",
            "Wire bytes on the links of the job's hosts, by direction and class: what they sent and received.",
            _volume_frames,
            draw.volume,
        ),
        Exhibit(
            "who-to-whom",
            "Who sends to whom",
            "traffic characteristics, heat map",
            "Training payload by sender and receiver, counted at the sender.",
            _heat_frames,
            draw.heat_map,
        ),
        Exhibit(
            "flow-sizes",
            "Flows by size",
            "traffic characteristics and communication patterns",
            "Small: less than 100 kB of payload in all; large: at least 10 MB (limits are ours). A flow between "
            "two watched hosts counts once.",
            _size_frames,
            draw.sizes,
        ),
    ),
)
