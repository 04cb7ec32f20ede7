# SPDX-License-Identifier: Apache-2.0
"""Control groups as runtimes and systemd name them → what people call them."""

from pathlib import Path

import pytest

from netmon.kernel.processes import ControlGroups, container_name

ID = "0123456789ab" + "cd" * 26


@pytest.mark.parametrize(
    ("cgroup", "name"),
    [
        (f"0::/system.slice/docker-{ID}.scope\n", "0123456789ab"),
        (f"12:memory:/docker/{ID}\n0::/\n", "0123456789ab"),
        (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope\n", "0123456789ab"),
        (f"0::/machine.slice/libpod-{ID}.scope/container\n", "0123456789ab"),
        ("0::/lxc.payload.trainer/init.scope\n", "trainer"),
        ("4:cpu:/lxc/trainer\n", "trainer"),
        ("0::/system.slice/backup.service\n", "backup.service"),
        ("0::/user.slice/user-0.slice/user@0.service/app.slice/run-1.scope\n", "run-1.scope"),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", "slurm-4711"),
        ("9:freezer:/slurm/uid_1000/job_4711/step_0\n", "slurm-4711"),
        ("0::/init.scope\n", ""),
        ("0::/\n", ""),
        ("", ""),
    ],
)
def test_a_control_group_has_a_name(cgroup: str, name: str) -> None:
    assert container_name(cgroup) == name


def test_a_process_that_is_gone_is_named_by_the_number_of_its_control_group(tmp_path: Path) -> None:
    unit = tmp_path / "system.slice" / "backup.service"
    unit.mkdir(parents=True)
    groups = ControlGroups(tmp_path)
    assert groups.container(unit.stat().st_ino) == "backup.service"
    assert groups.container(1) == ""
