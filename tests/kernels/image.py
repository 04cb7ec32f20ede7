# SPDX-License-Identifier: Apache-2.0
"""Makes what a row boots from: packages and wheels, unpacked (nothing is installed, nothing of it runs here).

Everything is kept in a cache, so that the second time costs nothing. Needs apt, dpkg-deb, cpio and depmod, not root.
"""

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

from rows import MODULES, PACKAGES, WHEELS, Row

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
MIRROR = "http://deb.debian.org/debian"
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class Image:
    """The kernel and the root file system of a row."""

    def __init__(self, row: Row, cache: Path) -> None:
        """cache: a folder that survives, such as ~/.cache/netmon/kernels."""
        self.row = row
        made_of = (row.architecture, row.kernel, row.kernel_suite, row.suite, row.bcc_suite, row.python, row.packages)
        state = repr((made_of, PACKAGES, WHEELS, MODULES)) + Path(__file__).read_text()
        self.folder = cache / f"{row.name}-{hashlib.sha256(state.encode()).hexdigest()[:12]}"
        self.kernel, self.root = self.folder / "vmlinuz", self.folder / "root.cpio"
        self._apt_folder = cache / "apt" / f"{row.architecture}-{row.kernel_suite}-{row.suite}-{row.bcc_suite}"

    def make(self) -> None:
        """Downloads and unpacks, unless that has been done. Raises RuntimeError with what failed."""
        if self.root.exists():
            return
        for old in self.folder.parent.glob(f"{self.row.name}-{'[0-9a-f]' * 12}"):
            shutil.rmtree(old)
        tree = self.folder / "tree"
        tree.mkdir(parents=True)
        self._update()
        for package in self._wanted():
            _run("dpkg-deb", "-x", package, tree)
        _merge_usr(tree)
        self._kernel_into(tree)
        self._wheels_into(tree)
        for mount in ("proc", "sys", "dev", "run", "tmp", "netmon"):
            (tree / mount).mkdir(exist_ok=True)
        archive(tree, self.root)
        shutil.rmtree(tree)

    def _apt(self, tool: str, *arguments: str) -> str:
        folder = self._apt_folder
        options = {
            "Dir::Etc::SourceList": folder / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::Etc::Parts": "/dev/null",
            "Dir::State": folder,
            "Dir::State::Lists": folder / "lists",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder,
            "APT::Architecture": self.row.architecture,
            "APT::Architectures": self.row.architecture,
            "Acquire::Retries": 5,
            "Debug::NoLocking": 1,
            "APT::Sandbox::User": "",
        }
        return _run(tool, *(f"-o{name}={value}" for name, value in options.items()), *arguments)

    def _update(self) -> None:
        folder = self._apt_folder
        for part in ("lists/partial", "archives/partial", "empty/partial"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        suites = dict.fromkeys((self.row.suite, self.row.bcc_suite, self.row.kernel_suite))
        lines = [f"deb [signed-by={KEYS}] {MIRROR} {suite} main\n" for suite in suites]
        (folder / "sources.list").write_text("".join(lines))
        self._apt("apt-get", "-qq", "update")

    def _wanted(self) -> list[Path]:
        """The packages of the user space and all that they depend on, downloaded."""
        row = self.row
        bcc = [f"{name}/{row.bcc_suite}" for name in ("python3-bpfcc", "libbpfcc")]
        return self._fetched(f"-t={row.suite}", *bcc, *(f"{name}/{row.suite}" for name in (*PACKAGES, *row.packages)))

    def _fetched(self, *names: str) -> list[Path]:
        """The files of these packages and of all that they depend on."""
        install = ("-qq", "-y", "--no-install-recommends", "install", *names)
        # What is there already would not be listed: so it is asked of an archive that is empty.
        plan = self._apt("apt-get", f"-oDir::Cache::archives={self._apt_folder}/empty", "--print-uris", *install)
        self._apt("apt-get", "--download-only", *install)
        return [self._apt_folder / "archives" / name for name in re.findall(r"^'\S+' (\S+\.deb)", plan, re.M)]

    def _kernel_into(self, tree: Path) -> None:
        """The newest kernel of its kind; of its modules those that the tests use, and what they need."""
        row = self.row
        about = self._apt("apt-cache", "show", f"{row.kernel}/{row.kernel_suite}")
        name = re.findall(r"^Depends:.*?(linux-image-\d[^\s,]+)", about, re.M)[0]
        at = self.folder / "kernel"
        at.mkdir()
        for package in self._fetched(name):  # newer ones keep their binary and their modules in packages of their own
            if package.name.startswith("linux-"):
                _run("dpkg-deb", "-x", package, at)
        _merge_usr(at)
        (release,) = at.glob("usr/lib/modules/*")
        (kernel,) = {
            path.resolve() for pattern in ("boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz*") for path in at.glob(pattern)
        }
        shutil.copy(kernel, self.kernel)
        home = tree / "usr/lib/modules" / release.name
        for module in _closure(release, MODULES):
            (home / module).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(release / module, home / module)
        for index in release.glob("modules.builtin*"):
            shutil.copy(index, home)
        _run("/sbin/depmod", "-b", tree / "usr", release.name)
        shutil.rmtree(at)

    def _wheels_into(self, tree: Path) -> None:
        python = self.row.python or max(
            (path.name.removeprefix("python") for path in (tree / "usr/bin").glob("python3.??")),
            key=lambda version: int(version.partition(".")[2]),
        )
        machine = _MACHINES[self.row.architecture]
        platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in (17, 24, 27, 28)]
        platforms.append(f"--platform=manylinux2014_{machine}")
        place = tree / "usr/lib/python3/dist-packages"
        options = ("--quiet", "--disable-pip-version-check", "--only-binary=:all:", f"--python-version={python}")
        _run(sys.executable, "-m", "pip", "install", *options, *platforms, f"--target={place}", "--upgrade", *WHEELS)


def archive(tree: Path, into: Path) -> None:
    """A folder as the kernel takes it for its first file system."""
    partial = into.with_suffix(".partial")
    with partial.open("wb") as file:
        names = subprocess.run(["find", ".", "-print0"], cwd=tree, stdout=subprocess.PIPE, check=True).stdout
        command = ["cpio", "--null", "--create", "--format=newc", "--quiet", "--owner=+0:+0"]
        subprocess.run(command, cwd=tree, input=names, stdout=file, check=True)
    partial.rename(into)


def _merge_usr(tree: Path) -> None:
    """What base-files does: /bin, /lib and their like are links into /usr."""
    for name in ("bin", "sbin", "lib", "lib64"):
        old, new = tree / name, tree / "usr" / name
        if old.is_symlink():
            continue
        new.mkdir(parents=True, exist_ok=True)
        if old.exists():
            _run("cp", "-a", f"{old}/.", new)
            shutil.rmtree(old)
        old.symlink_to(f"usr/{name}")


def _closure(release: Path, names: tuple[str, ...]) -> set[str]:
    """Paths below the kernel's folder of these modules and those that they depend on."""
    _run("/sbin/depmod", "-b", release.parents[2], release.name)
    needs = {}
    for line in (release / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[path] = others.split()
    known = {re.sub(r"\.ko.*", "", path.rpartition("/")[2]).replace("-", "_"): path for path in needs}
    wanted, open_ = set(), [known[name] for name in names if name in known]
    while open_:
        path = open_.pop()
        if path not in wanted:
            wanted.add(path)
            open_ += needs[path]
    return wanted


def _run(*command: "str | Path | int") -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()[-2000:]}")
    return done.stdout
