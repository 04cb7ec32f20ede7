# SPDX-License-Identifier: Apache-2.0
"""A rank's own transfer beside its gradients is told from gradients to somebody who is merely not known yet."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from test_verdict import CELLS, LINKS, MS, PACE, Run

from collector.flushing import verdict_table
from netmon.dl.verdict import Whose, sentence
from netmon.dl.verdict.other_ends import JobFlow, OwnTransfer, own_transfers
from netmon.history.judging import stored_verdicts
from netmon.records import Direction
from netmon.views import Cause, Verdict
from netmon.wire import netmon_pb2 as pb
from netmon.wire.mapping import from_message, to_message, verdict_without_names

RX, TX = Direction
STORE = ("10.0.0.9", 9000)


def host(rank):
    return f"10.0.0.{rank}"


def flow(rank, peer, way, far, near=40_000, process="python3"):
    """As the host of a rank describes it; far: address and port of the other end."""
    here, there = (host(rank) if rank >= 0 else "10.0.0.1", near), far
    (src, src_port), (dst, dst_port) = (here, there) if way == TX else (there, here)
    return JobFlow(rank, peer, process, way, src, dst, src_port, dst_port, 6)


RING = [flow(rank, 1 - rank, way, (host(1 - rank), 29_500 + 10 * rank + way)) for rank in (0, 1) for way in (RX, TX)]


@pytest.mark.parametrize(("way", "word"), [(TX, "to"), (RX, "from")])
def test_a_flow_to_a_host_without_ranks_is_the_ranks_own_transfer(way, word):
    found = own_transfers([*RING, flow(0, -1, way, STORE)], 2)
    assert found == [None] * 4 + [OwnTransfer(f"python3 (rank 0) {word}", "10.0.0.9:9000")]


def test_a_flow_to_another_ranks_host_is_one_where_a_process_has_it_that_is_no_rank():
    far, near = (host(1), 9_000), (host(0), 40_000)
    upload = flow(0, -1, TX, far)
    served = JobFlow(-1, 0, "minio", RX, near[0], far[0], near[1], far[1], 6)
    transfer = OwnTransfer("python3 (rank 0) to", "10.0.0.1:9000")
    assert own_transfers([*RING, upload, served], 2)[4:] == [transfer, transfer]
    assert own_transfers([*RING, upload], 2)[4] is None  # nobody there has told of it
    rank = served._replace(rank=1)
    assert own_transfers([*RING, upload, rank], 2)[4:] == [None, None]


def test_gradients_to_a_rank_that_is_not_known_yet_are_no_own_transfer():
    upload = flow(0, -1, TX, STORE)
    assert own_transfers([*RING, upload], 3)[4] is None  # it may be rank 2's
    assert own_transfers([*RING, upload], 0)[4] is None
    unknown = [each._replace(peer=-1) for each in RING]
    assert own_transfers([*unknown, upload], 2) == [None] * 5
    assert own_transfers([*RING, upload._replace(members=3)], 2)[4] is None


class Uploading(Run):
    """A run in which rank 0's own transfer meets its gradients."""

    def __init__(self, link=1, usual=0):
        super().__init__()
        self.who = Whose("resnet", 0, -1, False, f"python3 (rank 0) {'to' if link % 2 else 'from'}", "10.0.0.9:9000")
        self.usual = usual
        self.beside(link)
        self.shared = False  # it is a flow of the job's


@pytest.mark.parametrize(("link", "word", "way"), [(1, "to", "left"), (0, "from", "entered")])
def test_it_is_a_cause_of_its_own(link, word, way):
    run = Uploading(link)
    verdict = run.judged()
    assert (verdict.cause, verdict.culprit) == (Cause.OWN_TRANSFER, f"python3 (rank 0) {word} 10.0.0.9:9000")
    assert (verdict.host, verdict.direction) == (LINKS[link].host, LINKS[link].direction)
    assert verdict.bytes == pytest.approx(0.8 * 150 * CELLS * PACE, rel=0.01)
    assert verdict.own_transfer_ns == pytest.approx(120 * MS, rel=0.02)
    assert verdict.counterfactual_low_ns <= 300 * MS <= verdict.counterfactual_high_ns
    assert f"15 MB of python3 (rank 0) {word} 10.0.0.9:9000 {way} h0 and held the transfer up by 1" in sentence(verdict)


def test_what_comes_in_every_iteration_is_no_culprit():
    run = Uploading()
    run.everywhere = True
    assert run.judged().cause != Cause.OWN_TRANSFER


def test_an_upload_that_slows_nothing_is_not_told():
    run = Uploading()
    run.paces, run.sent = [1.0] * len(run.paces), [(link, cell, size // 20) for link, cell, size in run.sent]
    assert run.judged().own_transfer_ns == 0


def test_verdicts_that_were_stored_without_it_are_read(tmp_path):
    folder = tmp_path / "verdicts" / "date=2026-01-01" / "hour=00"
    folder.mkdir(parents=True)
    verdict = Uploading().judged()
    table = verdict_table([replace(verdict, cause=Cause.CROSS)])
    pq.write_table(table.drop_columns(["own_transfer_ns"]), folder / "part-1.parquet")
    (before,) = stored_verdicts(tmp_path)
    assert (before.cause, before.own_transfer_ns) == (Cause.CROSS, 0)
    pq.write_table(verdict_table([verdict]), folder / "part-2.parquet")
    assert {each.own_transfer_ns for each in stored_verdicts(tmp_path)} == {0, verdict.own_transfer_ns}


def test_who_may_see_no_processes_sees_no_transfers_either():
    verdict = Uploading().judged()
    assert from_message(to_message(verdict, pb.Verdict()), Verdict) == verdict
    assert verdict_without_names(verdict).culprit == ""
