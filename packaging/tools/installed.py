# SPDX-License-Identifier: Apache-2.0
"""`python packaging/tools/installed.py NAME[EXTRA,…]`: what it needs, all the way down, in the versions that are
installed.
"""

import sys
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed(requirement: Requirement, found: dict[str, str]) -> None:
    """Adds the version of each distribution by its name, this one's too. Raises PackageNotFoundError."""
    asked = [requirement]
    for each in asked:  # netmon[all] is netmon[report] and others
        name, extras = canonicalize_name(each.name), each.extras or {""}
        found[name] = metadata.version(name)
        for line in metadata.requires(name) or ():
            below = Requirement(line)
            wanted = below.marker is None or any(below.marker.evaluate({"extra": extra}) for extra in {"", *extras})
            if wanted and not any(
                canonicalize_name(below.name) == canonicalize_name(known.name) and below.extras <= known.extras
                for known in asked
            ):
                asked.append(below)


def main() -> int:
    """A line each, as pip reads them, without the one that was asked for."""
    asked, found = Requirement(sys.argv[1]), dict[str, str]()
    needed(asked, found)
    del found[canonicalize_name(asked.name)]
    print("\n".join(f"{name}=={version}" for name, version in sorted(found.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
