# SPDX-License-Identifier: Apache-2.0
"""Cross traffic: the published sizes, and senders that say what they really sent."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from waiting import free_port

from netmon.lab.traffic.loads import DATA_MINING, FlowSizes, Recipe, load, write_load
from netmon.lab.traffic.profiles import PROFILES, Offer


def test_the_mean_web_search_flow_has_megabytes():
    assert FlowSizes().mean == 1_711_250


def test_drawn_sizes_have_the_distributions_mean():
    sizes = FlowSizes(scale=0.1).draw(np.random.default_rng(1), 200_000)
    assert sizes.mean() == pytest.approx(171_125, rel=0.02)
    assert sizes.min() >= 1
    assert sizes.max() <= 3_000_000


def test_the_same_seed_draws_the_same_sizes():
    first, second = (FlowSizes().draw(np.random.default_rng(7), 100) for _ in range(2))
    assert (first == second).all()


def test_the_mean_data_mining_flow_is_as_published():
    assert FlowSizes(DATA_MINING).mean == pytest.approx(12_658_199, abs=1)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_sender_offers_its_load_and_accounts_for_it(profile, tmp_path):
    file = tmp_path / "load.csv"
    write_load(file, load(Recipe("burst", 80e6, 1e8, 1), seconds=1))
    rate = 10_000_000 if profile == "datamining" else 100_000_000  # its flows are large: smaller ones
    offer = Offer("127.0.0.1", free_port(), load_bps=80e6, rate_bps=rate, seed=1, file=file)
    kind = PROFILES[profile]
    with contextlib.ExitStack() as stack:
        receiver = start(stack, kind.receiver(offer))
        while "istening" not in receiver.stdout.readline():
            assert receiver.poll() is None
        sender = start(stack, kind.sender(offer))
        if kind.sending:
            while not re.search(kind.sending, sender.stdout.readline()):
                assert sender.poll() is None
        time.sleep(2)
        sender.send_signal(signal.SIGTERM)
        account = kind.account(sender.communicate(timeout=60)[0])
    offered = account["bytes_sent"] * 8 / account["seconds"]
    assert 0.25 * 80e6 < offered < 1.4 * 80e6  # a busy machine lets it send less
    assert account.get("flows_ended", 1) > 0


def start(stack, command):
    """A process that is killed at the end, however that comes."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def test_the_web_search_account_is_the_last_line():
    output = "something else\n" + json.dumps({"bytes_sent": 5}) + "\n"
    assert PROFILES["websearch"].account(output) == {"bytes_sent": 5}


def test_senders_use_the_interpreter_of_netmon():
    offer = Offer("127.0.0.1", 1, 1.0, 1, 1)
    assert PROFILES["websearch"].sender(offer)[0] == sys.executable
