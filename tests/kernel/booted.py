# SPDX-License-Identifier: Apache-2.0
"""A real systemd as the first process of a container: this machine's own files, below a layer that takes what is
written.

Nothing of it reaches this machine: mounts, processes, network, cgroups are the container's own, and end with it.
"""

import shlex
import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[2]  # the checkout: /tmp is another one there
_SETUP = """
set -e
mount --make-rprivate /
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs tmpfs /mnt
mkdir /mnt/up /mnt/work /mnt/root /mnt/own /mnt/own-up /mnt/own-work
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/up,workdir=/mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$2,upperdir=/mnt/own-up,workdir=/mnt/own-work" /mnt/own
cd /mnt/root/etc/systemd/system
for unit in systemd-networkd-wait-online systemd-timesyncd systemd-resolved systemd-networkd getty@tty1 console-getty;
do
  ln -sf /dev/null $unit.service
done
cat >job.service <<END
[Unit]
After=basic.target dbus.service
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/bin/sh -c "sh /job/script >/job/output 2>&1; echo \\$? >/job/status"
ExecStopPost=/bin/systemctl --force --force poweroff
[Install]
WantedBy=basic.target
END
mkdir -p basic.target.wants
ln -s ../job.service basic.target.wants/job.service
: >/mnt/root/etc/machine-id
mount --bind /sys/kernel/btf /sys/kernel/btf 2>/dev/null || true
exec systemd-nspawn --quiet --directory=/mnt/root --register=no --keep-unit --private-network --capability=all \\
  --system-call-filter='bpf perf_event_open' --bind="$1":/job --bind=/mnt/own:"$2" --boot \\
  --console=pipe systemd.unit=basic.target
"""


def run_booted(script: str, folder: Path, limit_s: float = 240) -> str:
    """Runs a shell script as a service of a freshly booted systemd; what it printed. folder: /job there.

    Fails with its output where it does not succeed.
    """
    (folder / "script").write_text(script)
    command = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
        _SETUP,
        "sh",
        str(folder),
        str(_ROOT),
    ]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=limit_s
    )
    output, status = folder / "output", folder / "status"
    told = output.read_text() if output.exists() else ""
    assert status.exists(), f"{shlex.join(command[:4])}: {done.stdout[-2000:]}{done.stderr[-2000:]}{told}"
    assert status.read_text().strip() == "0", told
    return told
