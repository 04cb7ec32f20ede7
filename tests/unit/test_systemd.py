# SPDX-License-Identifier: Apache-2.0
"""The units are what systemd accepts, as confined as they claim, and their example files name real options."""

import configparser
import re
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from netmon.kernel.privilege import SERVICE_CAPABILITIES

SYSTEMD = Path(__file__).parents[2] / "systemd"
UNITS = ("netmon-agent.service", "netmon-collector.service")
EXPOSURE_AT_MOST = {"netmon-agent.service": 3.2, "netmon-collector.service": 1.3}  # of 10: unconfined

needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


def service(unit: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str
    parser.read(SYSTEMD / unit)
    return parser["Service"]


@needs_analyze
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_accepts_the_unit(tmp_path, unit):
    # verify wants the program to exist: give it one that does.
    copy = tmp_path / unit
    copy.write_text((SYSTEMD / unit).read_text().replace("/opt/netmon/.venv/bin/netmon", sys.executable))
    drop_in = tmp_path / f"{unit}.d" / "tls.conf"
    drop_in.parent.mkdir()
    shutil.copy(SYSTEMD / "tls.conf", drop_in)
    done = analyze("verify", "--man=no", str(copy))
    ours = [line for line in done.stderr.splitlines() if unit in line]
    assert (done.returncode, ours) == (0, []), done.stderr


@needs_analyze
@pytest.mark.parametrize("unit", UNITS)
def test_exposure_is_below_its_bound(unit, record_property):
    done = analyze("security", "--offline=true", "--no-pager", str(SYSTEMD / unit))
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd-analyze security has no --offline before systemd 250")
    exposure = float(re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)[1])
    print(f"{unit}: exposure {exposure} of 10")
    record_property("exposure", exposure)
    assert exposure <= EXPOSURE_AT_MOST[unit], done.stdout


def test_agent_holds_the_capabilities_it_needs_and_no_more():
    agent = service("netmon-agent.service")
    assert set(agent["AmbientCapabilities"].split()) == SERVICE_CAPABILITIES.keys()
    assert set(agent["CapabilityBoundingSet"].split()) == SERVICE_CAPABILITIES.keys()


@pytest.mark.parametrize("unit", UNITS)
def test_a_service_is_bounded_watched_and_given_up_in_the_end(unit):
    bounds = service(unit)
    for key in ("MemoryHigh", "MemoryMax", "TasksMax", "CPUWeight", "CPUQuota", "WatchdogSec", "RestartSec"):
        assert bounds[key]
    assert bounds["TimeoutStopSec"]
    assert "StartLimitBurst=60\n" in (SYSTEMD / unit).read_text()


def test_collector_holds_no_capability():
    collector = service("netmon-collector.service")
    assert collector["CapabilityBoundingSet"] == ""
    assert "AmbientCapabilities" not in collector
    assert collector["DynamicUser"] == "yes"


@pytest.mark.parametrize("name", ["agent", "collector"])
def test_example_names_real_options(tmp_path, name):
    """Also the commented ones: what is commented out must work once the comment sign is removed."""
    from netmon.options import defaults_from

    if find_spec(f"netmon.commands.{name}") is None:
        pytest.skip(f"there is no netmon {name} yet")
    complete = tmp_path / f"{name}.toml"
    complete.write_text(re.sub(r"^# (?=[a-z-]+ = )", "", (SYSTEMD / f"{name}.toml").read_text(), flags=re.MULTILINE))
    parser = ArgumentParser()
    import_module(f"netmon.commands.{name}").arguments(parser)
    defaults_from(complete, parser)
    parser.parse_args([])  # everything that is required is set
