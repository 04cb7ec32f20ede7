# SPDX-License-Identifier: Apache-2.0
"""What the dataset's tables and columns mean, in words for the documentation."""

from netmon.evidence import MEANINGS
from netmon.records import CLASS_NAMES, COUNTS, STACK
from netmon.views import CAUSES, OF_SHARE, Cause

TABLES = {
    "buckets": "A flow in a bucket of `bucket_ns`. Empty buckets have no row.",
    "full": "As `buckets`, at the agents' own resolution: windows of slow iterations, bursts or changes of class.",
    "flows": "A flow, or an aggregate of many small ones.",
    "iterations": "An iteration of a rank, with the payload of its host's links during that time.",
    "ledger": "A link in an interval between two readings of the NIC's counters: where each byte went.",
    "nic": "A counter of a device, when it has changed and once a minute.",
    "transport": "A TCP connection between two looks at its socket, every half second. Differences of counters.",
    "host": "A host in a second (rank −1), and each rank on it; shorter while something kept the rank from running.",
    "waits": "A rank that is quiet, and what it is in: a row for each collective that is not over, and for the last "
    "one of each group; another one when it goes on.",
    "collectives": "What a rank called in a step: a row for each group and operation (of transfers: and rank).",
    "transfers": "What a rank has sent by NCCL to another one, or received, on any network. No byte is reported twice.",
    "rdma": "What a process has posted on a queue pair of an RDMA device by libibverbs, some of one kind in a time.",
    "hangs": "A job that hung, and who was missing. A row when it is reported, another one when it is over.",
    "verdicts": "A slow iteration of a job, and why. The shares add up to `excess_ns`.",
    "sessions": "An interface of an agent's session: what holds for all its rows.",
}

_CLASSES = [f"`{CLASS_NAMES[class_]}`" for class_ in STACK]
_CAUSES = [f"`{cause.name.lower()}`" for cause in CAUSES if cause != Cause.CHANGE]
_COLUMNS = {
    "host": "name of the host",
    "session": "name of the agent's session: one run of an agent",
    "interface": "name of the interface",
    "direction": "`rx` or `tx`, as the host sees it",
    "flow_id": "number of the flow in its session",
    "bucket_start_ns": "start of the bucket",
    "bucket_ns": "width of the bucket",
    **{name: count.meaning for name, count in COUNTS.items()},
    "class": " or ".join((", ".join(_CLASSES[:-1]), _CLASSES[-1])),
    "job": "the job's identity, which its launcher gave to all ranks",
    "job_name": "what people call the job",
    "iteration": "number of the iteration in its job",
    "rank": "rank in the job",
    "start_ns": "start",
    "end_ns": "end",
    "error_ns": "bound of the error",
    "relative": "the number counts from when somebody began to look",
    "hook": "`tcx`, `clsact`, `xdp` or `xdpgeneric`; `none`: the agent was killed, and nobody counted until the next",
    "byte_basis": "which bytes are counted, in words",
    "pid": "process id on the host",
    "clock_error_ns": "bound of the error of the rows' times against other hosts",
    # full
    "reason": "why the window is kept",
    "gap": "what of the window is missing",
    # flows
    "src": "source address",
    "dst": "destination address",
    "src_port": "source port",
    "dst_port": "destination port; EtherType of a frame that is not IP",
    "protocol": "IP protocol number",
    "process": "program that owns the local socket",
    "container": "container, systemd unit or Slurm job of the process",
    "user": "login name of the user whose process it is; the number where no name is known",
    "peer_rank": "rank at the other end",
    "first_ns": "first packet",
    "last_ns": "last packet",
    "class_source": "how the owner is known",
    "traffic": "of a DL flow: `gradient`, `control`, or `unexplained`: this job's steps are not understood",
    "members": "0: a flow; else an aggregate, in which a flow appeared so often",
    "prefix_bits": "of an aggregate: length of the remote address' prefix; 0: any",
    # iterations
    "size": "ranks in the job",
    "start_moment": "what `start_ns` is: `step_start`, `first_enqueue`, …",
    "end_moment": "what `end_ns` is: `step_end`, `last_wait`, …",
    "comm_start_ns": "the first gradient is handed to the library",
    "comm_end_ns": "the last reduced gradient is there",
    "wait_start_ns": "the training thread has nothing left but to wait",
    "exposed_ns": "communication that computing does not hide",
    "source": "`hook`, `uprobe`, `timeline` or `inferred`",
    "parameters": "size of the model; 0: unknown",
    "gradient_bytes": "bytes of all gradients of a step; 0: 4 for each parameter",
    "parameters_basis": "who reported the model's size: `hook`, `calls` or `option`",
    "node_shared": "a link of the host had cross traffic during the iteration",
    "cross_top": "who moved the most cross traffic: a program, or `job` and its identity",
    "peak_bps": "largest wire rate of all classes on a link of the host in a share window",
    # ledger
    "nic_bytes": "the NIC's counter, in wire bytes",
    "attributed_bytes": "bytes of flows",
    "overflow_bytes": "bytes of flows that found no room in the flow table",
    "lost_kernel_bytes": "bytes of records that found no room in the ring",
    "lost_agent_bytes": "bytes of records that the agent lost",
    "invisible_bytes": "bytes that the NIC counted and the hook did not see",
    "coverage": "attributed / NIC; null on an idle link",
    "nic_counter_bytes": "the NIC's counter as it stands",
    "nic_packets": "the NIC's counter of packets",
    "clock_offset_ns": "the host's own UTC minus the dataset's",
    # nic
    "time_ns": "when it was read",
    "device": "interface, or RDMA device and port",
    "counter": "name, as the driver calls it",
    "value": "the counter, cumulative",
    # verdicts
    "duration_ns": "how long it took",
    "baseline_ns": "how long the job's iterations usually take; 0: unknown",
    "excess_ns": "duration − baseline_ns",
    "cause": f"{', '.join(_CAUSES[:-1])} or {_CAUSES[-1]}; `change`: none, from this iteration on the job itself takes "
    "longer or shorter",
    "culprit": "whose bytes, or which rank",
    "bytes": "payload of the culprit on that link during the iteration",
    **{f"{name}_ns": f"share: {about.meaning}" for name, about in OF_SHARE.items()},
    "counterfactual_ns": "how long it would have taken without the culprit's bytes; null: nobody's bytes delayed it",
    "counterfactual_low_ns": "lower end of its 90 % interval",
    "counterfactual_high_ns": "upper end of its 90 % interval",
    "confidence": "0 to 1",
    "second_cause": "cause of the second largest share",
    "second_culprit": "culprit of the second largest share",
    "culprit_user": "whose process the culprit is; empty: not known",
    "sender": "who sent the culprit's bytes: a host, or the address of one without an agent; empty: not known",
    "receiver": "who received them, in the same way",
    "group_waits": "in which group of ranks the others waited longer, and who kept them; empty: not known",
    "reported_ns": "when the verdict was given",
    "receiver_ns": "time of the transfer, beyond the normal, that TCP waited for a receiver's window on one connection",
    "sender_ns": "the same for the sender's buffer",
    "ranks": "where each rank's time went: a list of `rank`, `host`, `duration_ns` and its parts "
    "(`computed_ns`, `waited_ns` for rank `waited_for`, `transfer_ns`, `stalled_ns` by `stalled_by`, `after_ns`)",
    # hangs
    "since_ns": "the first rank began to wait",
    "until_ns": "the ranks went on; 0: they had not",
    "what": "`not_entered`, `other_call`, `crosswise`, `gone`, `host_silent`, `not_ending`, `stopped_in_it`, "
    "`cut_off` or `ended`",
    "collective": "what the ranks wait in",
    "sequence": "its number, as PyTorch counts it on these ranks; −1: not known",
    "group": "its group, in words; empty: of all ranks",
    "why": "what the missing rank does instead, in words",
    "missing": "ranks that are missing: a list, the one that is named first",
    "waiting": "ranks that wait: a list",
    # sessions
    "agent_version": "version of the agent",
    "full_bucket_ns": "width of the agent's own buckets",
    "capacity_bps": "capacity of a link; 0: unknown",
    "super_packet_ns": "time that the largest packet seen as one takes on the link; 0: unknown",
    "hook_rx": "hook that counts received frames",
    "hook_tx": "hook that counts sent frames",
    "clock_source": "how the hosts' clocks are compared",
    "share_window_ns": "width of the sharing window",
    "share_threshold": "cross payload, as a fraction of the capacity, from which a window is shared",
}

_OF_TABLE = {
    ("nic", "source"): "`ethtool`, `sysfs` or `rdma`",
    ("sessions", "start_ns"): "start of the session",
    ("sessions", "bucket_ns"): "width of the streamed rows",
    ("verdicts", "host"): "where the cause is",
    ("verdicts", "rank"): "rank that was late, or whose link it was",
    ("hangs", "host"): "host of the missing rank; empty: not known",
    ("hangs", "rank"): "rank that is missing; −1: none",
    ("hangs", "reported_ns"): "when it was reported",
    ("verdicts", "error_ns"): "bound of the shares' error: normal spread and clocks",
    ("iterations", "iteration"): "number of the iteration in its job; −1: it was before the first that all ranks count",
    ("iterations", "error_ns"): "bound of the error of the iteration's times",
}

_PAYLOAD_OF = {
    "dl": "the rank's own flows, shared or not",
    "dl_shared": "the part of it in shared windows",
    "dl_control": "the part of it that is control traffic",
    "cross": "cross traffic on all links of the host, other jobs included",
    "other_job": "the part of it that is other jobs' training traffic",
    "unclassified": "flows whose owner is not known",
    "cross_top": "who moved the most cross traffic",
}
_PAYLOAD = {
    f"{what}_{way}_bytes": f"payload {'sent' if way == 'tx' else 'received'}: {text}"
    for what, text in _PAYLOAD_OF.items()
    for way in ("tx", "rx")
}


def meaning(table: str, column: str) -> str:
    """What a column of a table means, in Markdown. Raises KeyError for a column that is not described here."""
    known = _OF_TABLE.get((table, column)) or MEANINGS.get(table, {}).get(column)
    return known or (_COLUMNS | _PAYLOAD)[column]
