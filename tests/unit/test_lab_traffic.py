# SPDX-License-Identifier: Apache-2.0
"""Cross traffic: the published sizes, and senders that say what they really sent."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from netmon.lab.traffic.flow_sizes import FlowSizes
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


@pytest.mark.parametrize("profile", PROFILES)
def test_a_sender_offers_its_load_and_accounts_for_it(profile):
    offer = Offer("127.0.0.1", 29600 + list(PROFILES).index(profile), load_bps=80e6, rate_bps=100_000_000, seed=1)
    kind = PROFILES[profile]
    receiver = subprocess.Popen(kind.receiver(offer), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with receiver:
        while "istening" not in receiver.stdout.readline():
            assert receiver.poll() is None
        start = time.monotonic()
        sender = subprocess.Popen(kind.sender(offer), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        time.sleep(3)
        sender.send_signal(signal.SIGTERM)
        account = kind.account(sender.communicate(timeout=10)[0])
        seconds = time.monotonic() - start
        receiver.kill()
    assert account["bytes_sent"] * 8 == pytest.approx(80e6 * seconds, rel=0.35)  # starting up takes its share


def test_the_web_search_account_is_the_last_line():
    output = "something else\n" + json.dumps({"bytes_sent": 5}) + "\n"
    assert PROFILES["websearch"].account(output) == {"bytes_sent": 5}


def test_senders_use_the_interpreter_of_netmon():
    offer = Offer("127.0.0.1", 1, 1.0, 1, 1)
    assert PROFILES["websearch"].sender(offer)[0] == sys.executable
