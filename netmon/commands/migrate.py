# SPDX-License-Identifier: Apache-2.0
"""`netmon migrate`: a dataset of an earlier schema version becomes one of today's."""

import argparse
import os
from pathlib import Path

HELP = "make a dataset of an earlier schema version one of today's, in its place: all of it, or nothing"
EXAMPLES = """\
  netmon migrate out
  netmon migrate /var/lib/netmon --dry-run
  systemctl stop netmon-collector && netmon migrate /var/lib/netmon && systemctl start netmon-collector
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "data",
        type=Path,
        metavar="DATA",
        help="the dataset's directory; no collector may write there meanwhile. What is there stays as it is until the "
        "new files are complete, so it needs as much room again",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")


def run(args: argparse.Namespace) -> int:
    """Migrate; says on standard output what it did. Blocks for about a second for a million rows."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from collector.dataset.migration import earlier_files, migrate

    if args.dry_run:
        found = [path for paths in earlier_files(args.data).values() for path in paths]
        size = sum(path.stat().st_size for path in found) / 1e6
        told = f"{len(found)} files of earlier versions, {size:.1f} MB, would be migrated" if found else _NOTHING
        print(f"{args.data}: {told}")
        return 0
    console = Console(stderr=True)
    columns = (BarColumn(20), TextColumn("{task.completed} of {task.total} files"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        try:
            done = migrate(args.data, lambda read, of: progress.update(task, completed=read, total=of))
        finally:
            if args.data.is_dir():
                _give_to_owner(args.data)
    if not done.files:
        print(f"{args.data}: {_NOTHING}")
        return 0
    versions = ", ".join(map(str, sorted(done.versions)))
    print(
        f"{args.data}: {done.rows} rows of {done.files} files (schema version {versions}) are in {done.made} files "
        f"now, with {done.sessions} sessions"
    )
    return 0


def _give_to_owner(data: Path) -> None:
    """As root: what was made belongs to whom the dataset does, so that a collector that is not root can go on."""
    owner = data.stat()
    if os.geteuid() or not owner.st_uid:
        return
    for folder, _, names in os.walk(data):
        for path in (Path(folder), *(Path(folder, name) for name in names)):
            if path.lstat().st_uid == 0:
                os.lchown(path, owner.st_uid, owner.st_gid)


_NOTHING = "nothing to migrate, all files are of today's layout"
