# SPDX-License-Identifier: Apache-2.0
"""What a viewer sees: frozen views of the last seconds. Times in ns, rates in bit/s."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from netmon.records import AgentCost, Class, Direction, Flow, Source, Table

if TYPE_CHECKING:
    import pyarrow as pa

LAG_NS = 2_000_000_000
"""An agent whose horizon is older than this lags; a collector settles rows for about a second."""

FULL_COVERAGE = 0.999
"""Below it a link's coverage is low: the buckets that are open when the NIC is read are a packet or two."""


@dataclass(frozen=True)
class LinkView:
    """One link over the last seconds."""

    host: str
    interface: str
    direction: Direction
    capacity_bps: int  # 0: unknown
    hook: str
    interval_ns: int  # of one column of payload_bps
    wire_bps: npt.NDArray[np.float64]  # (time, class), oldest first, the class in the order of Class
    coverage: float  # attributed / NIC since the agent's start; nan: unknown
    nic_bytes: int  # in wire bytes
    attributed_bytes: int
    overflow_bytes: int
    lost_kernel_bytes: int
    lost_agent_bytes: int
    invisible_bytes: int
    series_end_ns: int = 0  # utc, of the last column of wire_bps; 0: not known


@dataclass(frozen=True)
class RankView:
    """One rank's last finished iteration."""

    rank: int
    host: str
    iteration: int
    duration_ns: int
    communication_ns: int  # first enqueue to last wait; 0: unknown
    node_shared: bool
    dl_tx_bytes: int  # payload; −1: unknown, as the next two
    cross_tx_bytes: int
    cross_rx_bytes: int
    exposed_ns: int = -1  # of the communication, in which nothing was computed; -1: unknown


STEP = np.dtype(
    [
        ("rank", "<i8"),
        ("number", "<i8"),
        ("start_ns", "<i8"),
        ("comm_start_ns", "<i8"),  # 0: not known, as of the next two
        ("wait_start_ns", "<i8"),
        ("comm_end_ns", "<i8"),
        ("end_ns", "<i8"),
    ]
)
"""One iteration of one rank of a job; times in ns of the UTC epoch."""


@dataclass(frozen=True)
class SourceScore:
    """How well a source of iterations does, compared with the best one of the same job."""

    source: Source
    reference: Source
    iterations: int  # of the reference, in the time that both cover
    found: int  # by the source, in that time
    matched: int  # pairs of the two that are the same iteration
    error_ns: int  # median distance of their beginnings

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; nan where there is nothing to find and nothing was found."""
        both = self.iterations + self.found
        return 2 * self.matched / both if both else float("nan")


class Cause(IntEnum):
    """Why an iteration took longer than its job's usually do."""

    UNKNOWN = 0
    CROSS = 1  # traffic that is no training
    OTHER_JOB = 2  # another job's training traffic
    STRAGGLER = 3  # one rank came late, or stopped in the midst of a transfer, and the others waited
    PAUSE = 4  # all ranks did something else: an evaluation, a checkpoint
    COMPUTE = 5  # of a job of one rank
    LOSS = 6  # packets that the network dropped, with nobody else on the link
    SLOW_LINK = 7  # a link that gave less than it usually does, with nobody else on it
    HOST = 8  # the host itself: its CPUs were busy, or a quota throttled the rank
    OWN_TRANSFER = 9  # what a rank transferred alongside its gradients: a checkpoint, training data
    CHANGE = 10  # none: from this iteration on the job itself takes longer, or shorter, as with another batch size


@dataclass(frozen=True)
class About:
    """All that is said of a cause, or of a part of an iteration's excess that tells of none, anywhere.

    `reason` and `who` are templates, whose words netmon.dl.verdict.verdict_text:place and .incidents:who fill in. A
    `who` with `{way}` is said where the link is known, else `short`.
    """

    cause: Cause | None
    share: str  # Verdict and the dataset have SHARE_ns of it; empty: there is none
    letter: str  # on a flag of the page
    short: str  # the cause in a few words
    part: str  # the share in a few words, among others
    line: str  # the share in a line of its own
    meaning: str  # of the dataset's column SHARE_ns
    colour: str = field(kw_only=True)  # of a picture
    reason: str = ""  # after "it took longer because"
    who: str = ""  # of an incident: whose doing it is, and whom it hit
    remedy: str = ""  # of an incident: what to do (netmon.dl.verdict.incidents:remedy)
    stalled_by: str = ""  # of a rank: who held it up
    network: bool = False  # the network or its users are to blame
    names_job: bool = False  # the culprit is a job or a rank: known to viewers that see jobs only
    windows: bool = False  # what TCP says of its windows may be why


_BYTES = "{bytes} of {culprit} {left} %s and held the transfer up by {ns}{without}"

ABOUT = (
    About(
        *(Cause.COMPUTE, "compute", "C", "computing", "computing"),
        colour="#332288",
        line="computed longer",
        meaning="a job of one rank computed longer",
        reason="it computed {ns} longer; no network cause",
        who="it computed longer",
        remedy="nothing on the network: look at what the rank computes",
    ),
    About(
        *(Cause.STRAGGLER, "late", "S", "a late rank", "late ranks"),
        colour="#009E73",
        line="waiting for a rank that was late or had stopped",
        meaning="a rank came late or stopped, and the others waited",
        reason="rank {rank} ({host}) was {ns} late, and the others waited; no network cause",
        who="rank {rank} ({host}) was late",
        remedy="look at what rank {rank} does before its first gradient: its input, its GPU, its CPU",
        stalled_by="{culprit}",
        names_job=True,
    ),
    About(
        *(None, "transfer", "", "", "more to transfer"),
        colour="#DDCC77",
        line="there was more to transfer",
        meaning="there was more to transfer",
        reason="there was more to transfer, which took {ns}",
    ),
    About(
        *(Cause.CROSS, "cross", "X", "cross traffic", "cross traffic"),
        colour="#CC79A7",
        line="the transfer was held up by traffic that is no training",
        meaning="traffic that is no training held the transfer up",
        reason=_BYTES % "{at}",
        who="{whose}",
        remedy="limit {where}, or move it off {link}",
        stalled_by="{culprit}",
        network=True,
    ),
    About(
        *(Cause.OTHER_JOB, "other_job", "J", "another job", "another job"),
        colour="#E69F00",
        line="the transfer was held up by another job",
        meaning="another job's traffic held it up",
        reason=_BYTES % "{at}",
        who="{whose}",
        remedy="start one of the jobs later (see the advice), or move one off {link}",
        stalled_by="{culprit}",
        network=True,
        names_job=True,
    ),
    About(
        *(Cause.OWN_TRANSFER, "own_transfer", "O", "an own transfer", "own transfers"),
        colour="#F0E442",
        line="the transfer was held up by what a rank transferred in addition to its gradients",
        meaning="what a rank transferred in addition to its gradients held it up",
        reason=_BYTES % "{host}",  # the culprit says which rank
        who="{culprit}, its own transfer, {way} {host}",
        remedy="let it transfer more slowly, less often, or by another link than {link}",
        stalled_by="{culprit}",
        network=True,
    ),
    About(
        *(Cause.LOSS, "loss", "L", "lost packets", "lost packets"),
        colour="#D55E00",
        line="the transfer was held up by lost packets",
        meaning="lost packets, with no other traffic on the link",
        reason="{packets} were lost with no other traffic on the link{why}, which cost {ns}",
        who="packets lost {way} {at}{why}",
        remedy="look at {link}: its speed, its errors, its cable, its port at the switch",
        stalled_by="loss{at_host}",
        network=True,
        windows=True,
    ),
    About(
        *(Cause.SLOW_LINK, "slow_link", "K", "a slow link", "a slow link"),
        colour="#56B4E9",
        line="the transfer was held up by a slow link that nobody shared",
        meaning="a link that was slower than usual, with no other traffic on it",
        reason="the link that {leaves} {at} was slower than usual with no other traffic on it{why}, which cost {ns}",
        who="a slow link {way} {at}{why}",
        remedy="look at {link}: its speed, its errors, its cable, its port at the switch",
        stalled_by="slow link{at_host}",
        network=True,
        windows=True,
    ),
    About(
        *(Cause.HOST, "host", "H", "the host", "the host"),
        colour="#0072B2",
        line="the host itself",
        meaning="the host's CPUs: waits for them, or a quota",
        reason="{at} itself was slow, which cost {ns}; no network cause",
        who="{at} itself was slow",
        remedy="look at who takes the CPUs of {host}, and at the CPU quota of rank {rank}",
        stalled_by="CPUs of {host}",
    ),
    About(
        *(Cause.PAUSE, "pause", "P", "a pause of all ranks", "pauses"),
        colour="#882255",
        line="all ranks paused",
        meaning="all ranks did something else, or stopped",
        reason="all ranks paused for {ns}; no network cause",
        who="all ranks paused",
        remedy="nothing on the network: it evaluates, writes a checkpoint, or was stopped",
        stalled_by="pause",
    ),
    About(
        *(Cause.UNKNOWN, "unknown", "?", "an unknown cause", "not known"),
        colour="#999999",
        line="not known",
        meaning="unknown",
        reason="the cause is not known",
        who="cause not known",
        remedy="look at the parts of its worst step",
        windows=True,
    ),
    About(
        *(Cause.CHANGE, "", "Δ", "a change of the job itself", "", "", ""),
        colour="#44AA99",
        reason="every rank computes {longer}; no network cause",
        who="the job itself changed",
        remedy="nothing on the network: was the batch size changed?",
    ),
)
"""In the order in which the shares of an excess are shown and stored."""

CAUSES = {one.cause: one for one in ABOUT if one.cause is not None}
OF_SHARE = {one.share: one for one in ABOUT if one.share}

SHARES = tuple(OF_SHARE)
"""Of an iteration's excess; Verdict has NAME_ns of each, which add up to excess_ns."""

NETWORK = tuple(cause for cause, about in CAUSES.items() if about.network)
"""Causes that blame the network or its users."""

CAUSE_OF = {share: about.cause for share, about in OF_SHARE.items() if about.cause}
"""The cause that a share of the excess shows; `transfer` and `unknown` show none."""


@dataclass(frozen=True)
class RankTimes:
    """Where one rank's iteration went (ns). The five parts add up to its duration where they are known."""

    rank: int
    host: str
    duration_ns: int
    known: bool = False  # when it communicated; else the parts are 0
    computed_ns: int = 0  # and everything else except waiting for gradients, until it had the last of them
    waited_ns: int = 0  # for a rank whose first gradient came later
    waited_for: int = -1  # that rank
    transfer_ns: int = 0  # waited for gradients when everybody was there, for as long as in the baseline
    stalled_ns: int = 0  # and for longer than in the baseline
    stalled_by: str = ""  # as the verdict says; empty: not known
    after_ns: int = 0  # from the last gradient to the end
    error_ns: int = 0  # of waited_ns against transfer_ns: the clocks' bounds


@dataclass(frozen=True)
class Verdict:
    """Why an iteration took as long as it did; times in ns, of the UTC epoch where they are moments.

    The shares (ABOUT says what each is) are parts of its excess over the job's baseline iterations and add up to it.
    """

    job: str
    iteration: int
    start_ns: int  # of its slowest rank
    end_ns: int
    duration_ns: int
    baseline_ns: int  # 0: not known
    excess_ns: int
    cause: Cause = Cause.UNKNOWN
    culprit: str = ""  # whose bytes; of a rank that came late, its name; empty: nobody's, or not known
    host: str = ""  # where
    interface: str = ""
    direction: Direction = Direction.RX  # of that interface; without one it says nothing
    rank: int = -1  # that came late, or whose link it was
    bytes: int = 0  # payload of the culprit on that link during the iteration
    compute_ns: int = 0
    late_ns: int = 0
    transfer_ns: int = 0
    cross_ns: int = 0
    other_job_ns: int = 0
    own_transfer_ns: int = 0
    loss_ns: int = 0
    slow_link_ns: int = 0
    host_ns: int = 0
    pause_ns: int = 0
    unknown_ns: int = 0
    error_ns: int = 0  # of the shares: the baseline iterations' spread and the clocks' bounds
    counterfactual_ns: int = -1  # without the culprit's bytes; −1: nobody's bytes delayed it
    counterfactual_low_ns: int = -1
    counterfactual_high_ns: int = -1
    confidence: float = 0.0  # 0 to 1
    second_cause: Cause = Cause.UNKNOWN  # UNKNOWN: there is none
    second_culprit: str = ""
    reported_ns: int = 0  # when
    relative: bool = False  # its number is counted since somebody looked
    receiver_ns: int = 0  # of the transfer, beyond the baseline, that a connection waited for its receiver's window
    sender_ns: int = 0  # the same for its send buffer
    culprit_user: str = ""  # whose process it is; empty: not known, or no process
    sender: str = ""  # of the culprit's bytes: a host, or the address of one without an agent
    receiver: str = ""  # the same
    group_waits: str = ""  # in which group ranks waited longer, and who kept them (netmon.dl.groups); empty: not clear
    ranks: tuple[RankTimes, ...] = ()  # from a collector: of a large job the most informative ones

    @property
    def network(self) -> bool:
        """Whether the network or its users are to blame."""
        return self.cause in NETWORK


@dataclass(frozen=True)
class LostTime:
    """What a part of a step cost: name is one of SHARES."""

    name: str
    ns: int


@dataclass(frozen=True)
class Incident:
    """Slow steps of one job with one cause and culprit, one after the other (netmon.dl.verdict.incidents); UTC, ns."""

    job: str
    since_ns: int  # its first step's beginning
    until_ns: int  # its last step's end
    first: int  # iteration
    last: int
    steps: int  # that were slow
    cause: Cause
    culprit: str  # as the verdicts say
    culprit_user: str  # of the step that lost most, as the next seven
    sender: str
    receiver: str
    host: str
    interface: str
    direction: Direction
    rank: int
    worst: int  # iteration
    lost_ns: int  # by all steps together
    baseline_ns: int  # that a step takes, mean
    without_ns: int  # that one of these would have taken without the culprit, mean; −1: nobody knows
    confidence: float  # mean, by time lost
    lost: tuple[LostTime, ...]  # the parts of lost_ns, the largest first, none below 1 % of it
    relative: bool = False  # its iterations are counted since somebody looked
    ongoing: bool = False  # the next slow step would be one of it

    @property
    def lost_per_step_ns(self) -> int:
        return self.lost_ns // self.steps

    @property
    def ratio(self) -> float:
        """Mean duration of its steps, times the baseline."""
        return 1 + self.lost_per_step_ns / self.baseline_ns


@dataclass(frozen=True)
class GroupLine:
    """A group of ranks and what it is for, as views show it."""

    group: str
    kind: str
    ranks: str
    calls: str  # of each rank in a step, with their bytes
    when: str  # in a step; empty: not known
    waits: str  # of a rank in a step, the mean; and of the one that waits longest
    waited_ns: float  # the mean


class Hung(IntEnum):
    """What is wrong where a job stands still."""

    NOT_ENTERED = 0  # a rank has not called what others wait in
    OTHER_CALL = 1  # it has called something else there
    CROSSWISE = 2  # ranks wait for each other in different groups
    GONE = 3  # its process has left or died
    HOST_SILENT = 4  # nothing is received from its host
    NOT_ENDING = 5  # all are in it, and nothing is transferred
    STOPPED_IN_IT = 6  # a rank has called it, and was stopped then
    CUT_OFF = 7  # what a rank sends or is sent does not arrive
    ENDED = 8  # its ranks have ended: one had called something else than the others


@dataclass(frozen=True)
class Hang:
    """A job that stands still, and who is missing (netmon.dl.hangs); UTC, ns."""

    job: str
    since_ns: int  # the first rank began to wait
    until_ns: int  # 0: it goes on
    reported_ns: int  # 0: ranks wait for longer than they ever did, but who is missing may only be late
    what: Hung
    collective: str  # "all-gather"
    sequence: int  # as PyTorch counts it on the ranks that wait; −1: not known
    group: str  # in words; empty: of all ranks
    rank: int  # that is missing; −1: none
    host: str  # its host; empty: not known
    why: str  # what it does instead; empty: not known
    missing: tuple[int, ...]  # all that are
    waiting: tuple[int, ...]  # ranks


PARAMETERS_BASES = {"hook": "sent by the hook", "calls": "read from the calls", "option": "as --parameters says"}
"""The source of a model's parameters."""


NOT_UNDERSTOOD = "this job's steps are not understood"
"""Said of a job whose ranks send each other what no sum of gradients explains."""


RECENT_ITERATIONS = 500
"""Those whose durations a JobView has, at most."""

RECENT_INCIDENTS = 8
"""Those that a JobView has, at most: the newest."""


RECENT_HANGS = 4
"""The same of hangs."""


@dataclass(frozen=True)
class RankPair:
    """What one rank has sent another one by NCCL lately."""

    rank: int  # that sends; −1: not known
    peer: int  # that receives; −1: not known
    bytes: int
    bps: float  # while something is on its way; nan: not known
    missed: int  # transfers whose size is not known: `bytes` is less than was sent
    rdma: float  # share of what the sender sends that RDMA carries, as far as is seen; nan: not known
    transport: str  # as netmon.dl.transfers.Way; empty: not known
    interface: str  # network device, if the sender uses one only; empty: not known


@dataclass(frozen=True)
class JobView:
    """One training job. Its durations are of the slowest rank in each of its recent iterations, whatever these met."""

    job: str
    size: int
    iteration: int
    last_ns: int
    median_ns: int  # of durations_ns, as the next one
    p99_ns: int
    source: Source
    error_ns: int
    relative: bool
    parameters: int  # 0: unknown
    measured_bytes: float  # median over ranks of the DL payload sent in the last finished iteration
    theory_bytes: float  # equation 3.1; nan: parameters or size unknown
    durations_ns: npt.NDArray[np.int64]  # (recent iterations,), oldest first, slowest rank
    ranks: tuple[RankView, ...]
    pattern: str = ""  # "ring", "tree", "star", "clique", "hierarchical"; empty: not known
    scores: tuple[SourceScore, ...] = ()
    verdicts: tuple[Verdict, ...] = ()  # on the last slow iterations, newest first
    incidents: tuple[Incident, ...] = ()  # the last ones, newest first
    known_ranks: int = 0  # of which `ranks` are some; 0: it is all of them
    shared_ranks: int = 0  # of those, whose node was DL-shared in their last iteration
    sharing: tuple[str, ...] = ()  # a sentence on each group of jobs with which it shares links
    name: str = ""  # what people call it, another one for each of the collector's jobs; empty: as `job`
    parameters_basis: str = ""  # their source, as the table iterations has it; empty: unknown
    not_understood: bool = False  # its steps do not explain what its ranks send: nothing is said of steps
    baseline_ns: int = 0  # how long its last iteration usually takes (netmon.dl.verdict.baseline); 0: not known
    hangs: tuple[Hang, ...] = ()  # the last ones, newest first
    pairs: tuple[RankPair, ...] = ()  # what its ranks send each other by NCCL; of many those that send most
    # Iterations of its ranks, dtype STEP, as they were requested, in no order.
    steps: Table = field(default_factory=lambda: np.zeros(0, STEP))


@dataclass(frozen=True)
class FlowView:
    """One flow over the last second."""

    host: str
    interface: str
    flow: Flow
    class_: Class
    wire_bps: float
    wire_bytes: int  # since the flow's start
    traffic: str = ""  # of a DL flow, as netmon.dl.classify names it; empty: not known
    # What TCP said of its connection last (netmon.evidence.TRANSPORT); nan: nothing.
    rtt_ns: float = float("nan")
    rtt_min_ns: float = float("nan")
    loss: float = float(
        "nan"
    )  # share of the payload sent that was sent again; of a flow that comes in nobody here knows


@dataclass(frozen=True)
class HostView:
    """One agent."""

    host: str
    connected: bool
    age_ns: int  # since its horizon
    clock_error_ns: int
    cost: AgentCost
    clock_source: str = ""  # "exchange", "traffic" (with it), "ptp", "ntp"; empty: the host's own, which nobody keeps
    clock_offset_ns: int = 0  # the host's UTC minus the collector's
    clock_skew_ppm: float = 0.0
    bucket_ns: int = 0  # width of the rows that it streams now
    stream_ns: int = 0  # what it streams unless it is under pressure
    agent_version: str = ""


@dataclass(frozen=True)
class Totals:
    """Everything that the collector knows, whatever of it is shown. No hosts: the collector does not say."""

    hosts: int = 0
    connected: int = 0
    lagging: int = 0  # connected, but what they sent last is outdated
    oldest_ns: int = 0  # age of what the connected host sent that lags most
    links: int = 0
    low_links: int = 0  # that do not cover what their NIC counted
    capacity_bps: int = 0
    nic_bytes: int = 0  # since the agents' start, as all that follow
    attributed_bytes: int = 0
    overflow_bytes: int = 0
    lost_kernel_bytes: int = 0
    lost_agent_bytes: int = 0
    class_bps: tuple[float, ...] = ()  # in the last second, in the order of Class; of hosts that have a present
    jobs: int = 0
    ranks: int = 0
    shared_ranks: int = 0  # whose node was DL-shared in their last iteration
    behind_ranks: int = 0  # that have stopped while the others of their job went on
    forgotten_jobs: int = 0  # that were too many to be kept
    flows: int = 0  # with traffic in the last second
    warnings: int = 0
    cpu_fraction: float = 0.0  # of the agent that takes most
    rss_bytes: int = 0
    clock_error_ns: int = 0  # the worst
    clock_sources: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """What of everything matches the request, shown or not, and where the shown part begins."""

    hosts: int = 0
    links: int = 0
    links_from: int = 0
    jobs: int = 0
    jobs_from: int = 0
    unknown: tuple[str, ...] = ()  # hosts and jobs that were requested and do not exist


@dataclass(frozen=True)
class Selection:
    """What of everything a viewer asks for; 0: all. What is worst comes first where not all can come."""

    hosts: tuple[str, ...] = ()  # only these and what is on them
    jobs: tuple[str, ...] = ()  # only these and the hosts of their ranks
    flows: int = 0  # how many of the largest; here 0 is none
    most_links: int = 0
    links_from: int = 0  # how many to leave out before them
    most_jobs: int = 0
    jobs_from: int = 0
    most_ranks: int = 0  # of each job
    most_hosts: int = 0  # alongside those of the links
    steps_ns: int = 0  # of the jobs: every rank's iterations that have ended in so long; here 0 is none


OVERVIEW = Selection(most_links=64, most_jobs=32, most_ranks=64, most_hosts=64)
"""What comes at once to who looks at everything: what is worst, by the pages of a terminal."""


@dataclass(frozen=True)
class Snapshot:
    """Everything that a viewer draws, at one moment."""

    time_ns: int  # utc
    share_threshold: float  # of a link's capacity, from which cross payload makes a window shared
    share_window_ns: int
    hosts: tuple[HostView, ...]
    links: tuple[LinkView, ...]
    jobs: tuple[JobView, ...]
    flows: tuple[FlowView, ...]  # the largest, by rate
    warnings: tuple[str, ...] = ()  # a few; `totals` has their number
    totals: Totals = Totals()
    page: Page = Page()
    insecure: bool = False  # nothing is encrypted on the way from other machines
    version: str = ""  # of the collector; empty: it does not say


def distinct_names(names: Mapping[str, str]) -> dict[str, str]:
    """names: by job, what people call it, "" where that is what all of its ranks have in common → what to show.

    Where multiple jobs have the same name, what their ranks have in common is appended, so that no two are alike.
    """
    wanted = {job: name or job for job, name in names.items()}
    times = Counter(wanted.values())
    shown: dict[str, str] = {}
    taken = {job for job, name in wanted.items() if name == job}  # a job's own name is nobody else's
    for job in sorted(wanted):
        name = wanted[job]
        if name != job and (times[name] > 1 or name in taken):
            name = f"{name} [{job}]"
        candidate, number = name, 1
        while name != job and candidate in taken:
            number += 1
            candidate = f"{name} ({number})"
        shown[job] = candidate
        taken.add(candidate)
    return shown


# --- What a viewer sees of the past: when iterations were, and frames of single moments. Plain types; UTC epoch, ns.

STEP_TIMES = np.dtype(
    [
        ("number", "<i8"),
        ("start_ns", "<i8"),  # of the first rank
        ("end_ns", "<i8"),  # of the last
        ("longest_ns", "<i8"),  # the slowest rank's duration
        ("baseline_ns", "<i8"),  # how long it usually takes, as its verdict says; 0: not known
        ("relative", "?"),  # its number counts from when somebody began to look
        ("whole", "?"),  # every rank that the job had has a row
        ("shared", "?"),  # some rank's host had foreign traffic, or it is not known yet
        ("changed", "?"),  # the job has changed its pace with it
    ]
)
"""One iteration of a job, all its ranks. Rows are in the order of their ends."""

HOUR_NS = 3_600_000_000_000


RECENT, DROPPED = ".netmon/recent", ".netmon/dropped"
"""Below a dataset's DIR. RECENT/TABLE/date=…/hour=…/ROLL/FILE: rows of the last minutes, in small files. Those of one
ROLL become TABLE/date=…/hour=…/ROLL.parquet, which never changes; from when it is there, it counts and they do not.
DROPPED/TABLE/date=…/hour=…/FILE: for ten minutes what is not to be kept any more."""

WRITER = ".collector.lock"
"""In a dataset's DIR: whoever writes the dataset has it locked."""


@dataclass(frozen=True)
class RankSpan:
    """One rank's iteration on the time axis."""

    rank: int
    host: str
    start_ns: int
    end_ns: int
    comm_start_ns: int = 0  # first gradient handed over; 0: unknown
    comm_end_ns: int = 0  # last one reduced; 0: unknown


@dataclass(frozen=True)
class PastSteps:
    """The iterations that can be gone back to."""

    jobs: Mapping[str, Table]  # by job, dtype STEP_TIMES
    verdicts: Sequence[Verdict] = ()  # on the slow ones, oldest first
    names: Mapping[str, str] = field(default_factory=dict)  # what people call the jobs
    written: bool = True  # by somebody still: more may come

    def newest_ns(self) -> int:
        """The end of the last iteration of any job; 0: there is none."""
        return max((end_ns for end_ns, _ in self.ends().values()), default=0)

    def go_on(self) -> dict[str, tuple[int, int]]:
        """`ends`, of jobs whose incidents may go on."""
        return self.ends() if self.written else {}

    def ends(self) -> dict[str, tuple[int, int]]:
        """By job, end and number of its last iteration."""
        return {job: (int(rows["end_ns"][-1]), int(rows["number"][-1])) for job, rows in self.jobs.items() if len(rows)}


@dataclass(frozen=True)
class Frame:
    """What was on the links in a span of time, as a snapshot at its end; links' rates are of columns in that span."""

    since_ns: int
    until_ns: int
    snapshot: Snapshot
    spans: tuple[RankSpan, ...] = ()  # of the job that was requested
    basis: str = ""  # what the rates rest on: "buckets of 10 µs, from the hosts' recorders"
    gaps: tuple[str, ...] = ()  # a sentence each on what is missing, and why


@dataclass(frozen=True)
class RowQuery:
    """Rows of one table of a dataset: those that touch [since, until), UTC. A table without times has all its rows."""

    table: str
    columns: Sequence[str] = ()  # those that the dataset lacks are left out; none: all
    since_ns: int = 0
    until_ns: int = 1 << 62
    among: Mapping[str, Sequence[str | int]] = field(default_factory=dict)  # by column, the values that count


TABLES = ("iterations", "verdicts", "buckets", "full", "flows", "ledger", "sessions", "collectives")
"""Those that can be wanted."""


class Rows(Protocol):
    """Where rows of a dataset can be had from."""

    name: str  # of the dataset, or of the collector that writes it

    def newest_ns(self) -> int:
        """When the newest of its iterations ended; blocks. Raises NetmonError where there is none."""

    def written(self) -> bool:
        """Whether somebody may still write more of them."""

    def batches(self, wanted: RowQuery) -> Iterator["pa.RecordBatch"]:
        """The rows; none where there is no such table. Blocks for each. Raises NetmonError."""

    def judged(self, since_ns: int) -> Sequence[Verdict]:
        """Verdicts made now on steps since then (UTC), where none are stored; some at most. Blocks."""

    def explained(self, job: str, iteration: int) -> Sequence[tuple[Verdict, Sequence[RankTimes]]]:
        """Where the time of that iteration went, of each of that number; none where nobody knows. Blocks."""


class Past(Protocol):
    """Where the past can be had from."""

    def steps(self) -> PastSteps:
        """The iterations of the last hour; blocks. Raises NetmonError."""

    def frame(self, job: str, number: int, since_ns: int, until_ns: int) -> Frame:
        """What happened around an iteration in a span of time, which lies within or around it; blocks.

        Raises NetmonError.
        """

    def times(self, job: str, number: int, end_ns: int) -> tuple[RankTimes, ...]:
        """Where the time of a slow iteration went, rank by rank; none where nobody knows. Blocks.

        end_ns: of the iteration, for a job may have begun anew. Raises NetmonError.
        """

    def groups(self, job: str) -> Sequence[GroupLine]:
        """What its groups of ranks were used for in its last minute; blocks. None where nobody tells of calls.

        Raises NetmonError.
        """
