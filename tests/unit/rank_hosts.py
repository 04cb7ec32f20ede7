# SPDX-License-Identifier: Apache-2.0
"""The ranks of several hosts with a job stage, for tests: what their agents tell of marks, and what it answers."""

import pickle

import numpy as np
from collector_stream import MS, TrainingAgent, hello, mark
from decoded import gather

from collector.dataset.manifest import Resume
from collector.host.stage import HostStage
from collector.jobs.rank_registry import RankRegistry
from collector.settings import Settings
from netmon.records import BUCKET, Batch, ClockSample, Mark, Moment, Source

START, END = Moment.STEP_START, Moment.STEP_END
UTC = 1_760_000_000_000 * MS


class PickledRegistry(RankRegistry):
    """As from another process: nothing but what the messages say gets across."""

    def answer(self, news):
        return pickle.loads(pickle.dumps(super().answer(pickle.loads(pickle.dumps(news)))))


class Host:
    """One of them: an agent that turns marks into iterations, and its session in the stage."""

    def __init__(self, hosts, name):
        self.hosts, self._agent = hosts, TrainingAgent()
        own = hello(host=name, session=f"s-{name}", clock=ClockSample(0, UTC, 1_000))
        self.place = hosts.stage.open(own, Resume())
        self._sequence = self.flow_id = 0

    @property
    def ranks(self):
        return self.hosts.stage.session(self.place).window.ranks

    @property
    def rejected(self):
        return self.ranks.rejected

    @property
    def unusable(self):
        """Marks that its agent could not use, by reason."""
        return +self._agent.iterations.unusable

    def hear(self, marks, horizon_ms=0):
        """A batch with these; what the traffic tells comes by its own way."""
        inferred = [one for one in marks if one.source is Source.INFERRED]
        if inferred:
            self.hosts.stage.add_marks(self.place, inferred)
        return self.tell(self._agent.training([one for one in marks if one.source is not Source.INFERRED]), horizon_ms)

    def tell(self, told, horizon_ms=0):
        """A batch that tells this of its ranks."""
        self._sequence += 1
        horizon_ns = int(horizon_ms * MS)
        clock = ClockSample(horizon_ns, UTC + horizon_ns, 1_000)
        batch = Batch(self._sequence, clock, horizon_ns, np.zeros(0, BUCKET), training=told)
        settled = self.hosts.stage.take([self.place], gather([batch]))
        assert not settled.failed
        for rows in settled.ended:
            for place, one in zip(rows.session.tolist(), rows.each(), strict=True):
                self.hosts.ended.setdefault(place, []).append(one)
        return settled

    def settle(self, until_ms):
        """Everything before; the iterations that are over by then."""
        return over(self.hear([], until_ms))


class Hosts:
    """Several of them in one stage."""

    def __init__(self):
        self.ended = {}  # iterations that nobody has asked about yet, by place
        self.stage = HostStage(Settings(settle_ns=0), PickledRegistry().answer)

    def ranks(self, host="h0"):
        return Host(self, host)

    def end(self, host):
        """Nothing more comes of it; its iterations."""
        return over(self.stage.settle_all([host.place], leaving=True))


def over(settled):
    return [one for accounted in settled.accounted for one, _ in accounted.each()]


def ranks(host="h0"):
    return Hosts().ranks(host)


def told(of, *marks: Mark, horizon_ms=0):
    """(job, number, begin, end) in ms of the iterations of this host that have ended with these marks."""
    of.hear(list(marks), horizon_ms)
    return [(i.job, i.number, i.start_ns // MS, i.end_ns // MS) for i in of.hosts.ended.pop(of.place, [])]


def step(number, start, **changes):
    return [mark(START, number, start, **changes), mark(END, number, start + 9, **changes)]
