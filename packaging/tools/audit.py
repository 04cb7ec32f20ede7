# SPDX-License-Identifier: Apache-2.0
"""`python packaging/tools/audit.py NAME[EXTRA,…]`: a look at the libraries that it needs, as they are installed here.

Whether they go together, are as their makers have published them, and have licenses that let everybody use them; and,
where an advisory database can be reached, whether any is known to be vulnerable. Exit status 0 if nothing was found.
"""

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata

from installed import needed
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_OPEN = re.compile(
    r"apache|\b0?bsd|\bmit\b|\bisc\b|python software|\bpsf|mozilla|mpl-2|unlicense|zlib|hpnd|\blgpl-2", re.I
)
"""Anybody may use, change and hand on what is under these. Where there is a choice, one is enough."""

_DATABASE_S = 30


def main() -> int:
    """What was looked at, a line each; what was found, a line each, on standard error."""
    asked, versions = Requirement(sys.argv[1]), dict[str, str]()
    needed(asked, versions)
    del versions[canonicalize_name(asked.name)]
    found = []
    for what, look in (("go together", _conflicts), ("are as published", _changed), ("have an open license", _closed)):
        lines = list(look(versions))
        found += lines
        print(f"audit: {len(versions)} libraries: all {what}" if not lines else f"audit: not all {what}", flush=True)
    vulnerable = _vulnerable(versions)
    print(f"audit: {vulnerable[0]}")
    found += vulnerable[1]
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    return bool(found)


def _conflicts(versions: dict[str, str]) -> Iterator[str]:
    """What pip says of ours: others may lie in the same environment."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if canonicalize_name(line.partition(" ")[0]) in versions:
            yield line


def _changed(versions: dict[str, str]) -> Iterator[str]:
    """Files that differ from the hash that came with them."""
    for name in versions:
        for file in metadata.files(name) or ():
            if file.hash is None or file.hash.mode != "sha256":
                continue
            try:
                digest = hashlib.sha256(file.locate().read_bytes()).digest()
            except OSError as error:
                yield f"{name}: {file}: {error.strerror}"
                continue
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
                yield f"{name}: {file} has been changed since it was installed"


def _closed(versions: dict[str, str]) -> Iterator[str]:
    for name in versions:
        about = metadata.metadata(name)
        said = [about["License-Expression"] or "", *(about.get_all("Classifier") or ())]
        said = [line for line in said if line and ("License" in line or line == said[0])]
        said = said or (about["License"] or "none").strip().splitlines()[:1]
        if not any(_OPEN.search(line) for line in said):
            yield f"{name}: its license is {'; '.join(said)}"


def _vulnerable(versions: dict[str, str]) -> tuple[str, list[str]]:
    """What was looked up, and what was found."""
    listed = "".join(f"{name}=={version}\n" for name, version in versions.items())
    command = [sys.executable, "-m", "pip_audit", "--requirement", "/dev/stdin", "--no-deps", "--disable-pip"]
    command += ["--format", "json", "--progress-spinner", "off", "--timeout", str(_DATABASE_S)]
    done = subprocess.run(command, input=listed, capture_output=True, text=True, check=False)
    try:
        told = json.loads(done.stdout)["dependencies"]
    except ValueError:
        told = []
    asked = [one for one in told if "skip_reason" not in one]
    if not asked:
        reasons = [one["skip_reason"] for one in told] or done.stderr.strip().splitlines()[-1:] or ["no answer"]
        return f"NOT looked up whether any is known to be vulnerable; no advisory database answers: {reasons[0]}", []
    known = [f"{one['name']} {one['version']}: {bug['id']}" for one in asked for bug in one["vulns"]]
    others = sorted(one["name"] for one in told if one not in asked)
    missing = f", not {', '.join(others)}" if others else ""
    return f"{len(asked)} libraries looked up in an advisory database{missing}: {len(known)} vulnerabilities", known


if __name__ == "__main__":
    sys.exit(main())
