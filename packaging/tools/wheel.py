# SPDX-License-Identifier: Apache-2.0
"""What a wheel has besides the packages: BPF sources, units, examples, the man pages that `make man` made, and what is
compiled.

pyproject.toml names it to setuptools. In a checkout all of it is found where it lies.
"""

import shutil
import sys
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parents[2]
SHARE = ROOT / "build" / "share"
INSIDE = {"bpf": "bpf", "systemd": "systemd", "packaging": "packaging", "LICENSE": "LICENSE"}


class WithPrograms(build_py):
    """Copies what stands beside the packages into netmon/."""

    def run(self) -> None:
        """Builds."""
        super().run()
        if self.editable_mode:
            return
        self.distribution.data_files = shared()
        package = Path(self.build_lib) / "netmon"
        for source, target in INSIDE.items():
            place = package / target
            if (ROOT / source).is_dir():
                shutil.rmtree(place, ignore_errors=True)
                shutil.copytree(
                    ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__", "container", "debian", "tools")
                )
            else:
                shutil.copy(ROOT / source, place)


_STABLE = sys.version_info >= (3, 11)  # buffers, which the loops in C take, are in the stable ABI


class Compiled(build_ext):
    """What is compiled fits every Python from 3.11 on, or the older one that is at hand."""

    def finalize_options(self) -> None:
        super().finalize_options()
        for extension in self.extensions if _STABLE else ():
            extension.py_limited_api = True
            extension.define_macros = [("Py_LIMITED_API", "0x030B0000")]


class Wheel(bdist_wheel):
    """Its name says so."""

    def finalize_options(self) -> None:
        self.py_limited_api = "cp311" if _STABLE else False
        super().finalize_options()


def shared() -> list[tuple[str, list[str]]]:
    """Files of build/share by the folders below the prefix that they go to."""
    files = sorted(path.relative_to(ROOT) for path in SHARE.rglob("*") if path.is_file())
    folders = sorted({path.parent for path in files})
    return [
        (str(folder.relative_to("build")), [str(path) for path in files if path.parent == folder]) for folder in folders
    ]
