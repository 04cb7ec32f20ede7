# SPDX-License-Identifier: Apache-2.0
"""Makes the disk of an emulated machine: Debian, its own kernel, systemd, and the Debian packages of this checkout, or
nothing of netmon and of what it needs.

Debian is fetched once and kept below ~/.cache/netmon/machine; the disk is made anew when netmon's sources have changed.
Needs root, mmdebstrap, mke2fs and, for a disk with netmon, what `make deb` needs.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "netmon/machine"
MIRROR = "http://deb.debian.org/debian"
SUITE = "bookworm"  # whose Python the packages are for, where they are built on it
DISK_BYTES = 6 << 30  # mostly holes

CLEAN = (
    *("linux-image-amd64", "initramfs-tools", "busybox-static", "systemd-sysv", "udev", "kmod", "qemu-guest-agent"),
    *("iproute2", "iputils-ping", "procps", "e2fsprogs", "python3-venv", "podman"),
)
PACKAGES = (
    *("linux-image-amd64", "initramfs-tools", "busybox-static", "systemd-sysv", "udev", "kmod", "qemu-guest-agent"),
    *("python3", "python3-bpfcc", "libgcc-s1", "libstdc++6", "iproute2", "iputils-ping", "procps", "e2fsprogs"),
    *("linux-libc-dev", "dmsetup", "nfs-kernel-server", "nfs-common", "util-linux-extra"),
)
_SOURCES = ("netmon", "collector", "bpf", "proto", "systemd", "packaging", "pyproject.toml")
_BEFORE = """
mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"
echo MODULES=list >"$1/etc/initramfs-tools/conf.d/small"
printf '%s\\n' virtio_pci virtio_blk ext4 >"$1/usr/share/initramfs-tools/modules.d/emulated"
"""
_SLOW = "[Service]\nTimeoutStartSec=1200s\nTimeoutStopSec=300s\n"
_SETTINGS = {
    "etc/hostname": "guest\n",
    "etc/fstab": "/dev/vda / ext4 errors=remount-ro 0 1\n",
    "etc/systemd/network/all.network": "[Match]\nName=en*\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\n",
    # An emulated CPU is 10 to 20 times slower.
    "etc/systemd/system/netmon-agent.service.d/slow.conf": _SLOW,
    "etc/systemd/system/netmon-collector.service.d/slow.conf": _SLOW,
    "etc/systemd/system.conf.d/slow.conf": "[Manager]\nDefaultTimeoutStartSec=600s\nDefaultDeviceTimeoutSec=600s\n",
    "etc/exports": "/srv *(rw,sync,no_subtree_check,fsid=0)\n",
    "etc/nfs.conf.d/test.conf": "[nfsd]\ngrace-time=10\nlease-time=10\n",
}
_MASKED = ("systemd-networkd-wait-online.service", "apt-daily.timer", "apt-daily-upgrade.timer", "getty@tty1.service")


@dataclass(frozen=True)
class Image:
    """What a machine boots from."""

    folder: Path

    @property
    def disk(self) -> Path:
        """The root file system, ext4, to be copied."""
        return self.folder / "root.img"

    @property
    def kernel(self) -> Path:
        """The kernel; `initrd` beside it."""
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        """What finds the disk."""
        return self.folder / "initrd.img"


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Nobody else makes an image meanwhile."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make() -> Image:
    """From what is kept, or anew. Raises RuntimeError with what failed."""
    return _made("disk", _netmon_is(), PACKAGES)


def make_clean() -> Image:
    """The same without netmon."""
    return _made("clean", repr(sorted(_SETTINGS.items())), CLEAN)


def _made(kind: str, about: str, packages: tuple[str, ...]) -> Image:
    netmon = kind == "disk"
    image = Image(CACHE / f"{kind}-{_digest(about, _base_is(packages))}")
    if not image.disk.exists():
        base = _base(kind, packages)
        for old in CACHE.glob(f"{kind}-*"):
            shutil.rmtree(old)
        image.folder.mkdir(parents=True)
        tree = image.folder / "tree"
        _run("cp", "-a", base, tree)
        if netmon:
            _install_netmon(tree, image.folder / "packages")
        for name, text in _SETTINGS.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text)
        for unit in _MASKED:
            (tree / "etc/systemd/system" / unit).symlink_to("/dev/null")
        _run("chroot", tree, "systemctl", "enable", "systemd-networkd")
        if netmon:
            _run("chroot", tree, "systemctl", "disable", "nfs-server", "netmon-agent", "netmon-collector")
        for name in ("vmlinuz", "initrd.img"):
            shutil.copy((tree / "boot").joinpath(next((tree / "boot").glob(f"{name}-*")).name), image.folder / name)
        partial = image.folder / "root.partial"
        with partial.open("wb") as file:
            file.truncate(DISK_BYTES)
        _run("mke2fs", "-q", "-t", "ext4", "-d", tree, partial)
        shutil.rmtree(tree)
        partial.rename(image.disk)
    return image


def _base(kind: str, packages: tuple[str, ...]) -> Path:
    """The tree of Debian, without netmon."""
    tree = CACHE / f"base-{kind}-{_digest(_base_is(packages))}"
    if not tree.exists():
        for old in CACHE.glob(f"base-{kind}-*"):
            shutil.rmtree(old)
        partial = CACHE / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        before = CACHE / "before.sh"
        before.write_text(f"#!/bin/sh\nset -e\n{_BEFORE}")
        before.chmod(0o755)
        options = ("--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(packages)}")
        _run("mmdebstrap", *options, f"--essential-hook={before}", "--format=directory", SUITE, partial, MIRROR)
        partial.rename(tree)
    return tree


def _install_netmon(tree: Path, packages: Path) -> None:
    _run("make", "--no-print-directory", "-C", ROOT, "man")
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(Path.home()), "COMPRESSION": "none"}
    _run(ROOT / "packaging/debian/build", packages, env=environment)
    shutil.copytree(packages, tree / "packages")
    script = """
      mount --make-rprivate / && mount -t proc proc "$1/proc" && mount -t tmpfs shm "$1/dev/shm" &&
      chroot "$1" sh -c 'DEBIAN_FRONTEND=noninteractive dpkg -i /packages/*.deb && rm -r /packages'"""
    _run("unshare", "--mount", "sh", "-c", script, "sh", tree)
    shutil.rmtree(packages)


def _base_is(packages: tuple[str, ...]) -> str:
    return repr((packages, SUITE, MIRROR, _BEFORE))


def _netmon_is() -> str:
    names = _run("git", "-C", ROOT, "ls-files", "--", *_SOURCES).splitlines()
    sources = [(name, _digest((ROOT / name).read_text(errors="replace"))) for name in names if (ROOT / name).is_file()]
    return repr((sources, sorted(_SETTINGS.items()), _MASKED, DISK_BYTES))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def _run(*command: "str | Path", env: "dict[str, str] | None" = None) -> str:
    done = subprocess.run([*map(str, command)], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()[-3000:]}")
    return done.stdout
