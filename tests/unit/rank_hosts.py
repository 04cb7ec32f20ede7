# SPDX-License-Identifier: Apache-2.0
"""The ranks of several hosts with a job stage, for tests: what they tell it and what it answers."""

import pickle
from types import SimpleNamespace

from collector_stream import MS, hello, mark

from collector.host.flows import AllFlows, FlowTable, Links
from collector.host.rank import RankLog
from collector.host.rank_table import RankTable
from collector.host.ranks import Ranks
from collector.host.stage import exchange
from collector.jobs.rank_registry import RankRegistry
from collector.messages import Holder
from netmon.dl.account import HostAccount, HostAccounts
from netmon.mark_runs import mark_runs
from netmon.records import Moment

START, END = Moment.STEP_START, Moment.STEP_END


class PickledRegistry(RankRegistry):
    """As from another process: nothing but what the messages say gets across."""

    def answer(self, news):
        return pickle.loads(pickle.dumps(super().answer(pickle.loads(pickle.dumps(news)))))


class Hosts:
    """What several hosts tell the job stage, and its answers."""

    def __init__(self):
        self.rank_log, self.flows, self._sessions = RankLog(), AllFlows(), {}
        self._registry = PickledRegistry()

    def ranks(self, host="h0"):
        account, place = HostAccount(HostAccounts(), 0), len(self._sessions)
        found = Ranks(place, Holder(host, f"s-{host}", 0), account, 0, self.rank_log, RankTable())
        found.hosts = self
        self._sessions[place] = SimpleNamespace(window=SimpleNamespace(rename=lambda: None))
        return found

    def talk(self):
        def fail(place, error):
            raise error

        exchange(self, self._sessions, self._registry.answer, fail)


def ranks(host="h0"):
    return Hosts().ranks(host)


def hear(of, marks, settled_ns=-1):
    of.add_runs(mark_runs(marks), settled_ns)
    align(of)


def align(of):
    of.request_names()
    of.hosts.talk()
    of.align(0, 0)
    of.hosts.talk()
    of.aligned()


def told(of, *marks, settled_ns=-1):
    hear(of, marks, settled_ns)
    return [(i.job, i.number, i.start_ns // MS, i.end_ns // MS) for i in of.ended()]


def step(number, start, **changes):
    return [mark(START, number, start, **changes), mark(END, number, start + 9, **changes)]


def settle(of, until_ns):
    return of.settle(until_ns, FlowTable(Links(hello()), AllFlows(), 0))
