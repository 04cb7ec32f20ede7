# SPDX-License-Identifier: Apache-2.0
"""Both services under a real systemd: configured, started, reloaded, watched, upgraded, stopped, removed."""

import shutil
from pathlib import Path

import pytest
from booted import run_booted

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("systemd-nspawn") is None, reason="systemd-nspawn is not installed"),
]

ROOT = Path(__file__).parents[2]
SEEN = f"""
for service in agent collector; do
  install -d /run/systemd/system/netmon-$service.service.d
  printf '[Service]\\nBindPaths={ROOT}\\n' >/run/systemd/system/netmon-$service.service.d/checkout.conf
done
"""
"""The services have folders of their own where temporary ones are, and a checkout may lie there."""


def test_both_services_from_installation_to_removal(tmp_path: Path) -> None:
    script = (Path(__file__).parent / "services.sh").read_text()
    told = run_booted(f"ln -sfn {ROOT} /opt/netmon\n{SEEN}\n{script}", tmp_path, limit_s=540)
    assert told.rstrip().endswith("== over"), told
