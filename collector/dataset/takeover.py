# SPDX-License-Identifier: Apache-2.0
"""What another writer of the dataset has stored of a host becomes ours: its sessions' state, and rows that may change.

Such rows lie in files alongside rows of other hosts. They are written into a file of ours, and the other's file without
them takes its place, both by one transaction over the two manifests. To be called while nobody else writes.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from collector.dataset.files import write_file
from collector.dataset.manifest import Manifest, OtherManifest, StoredFile
from collector.dataset.staging import Staging


@dataclass
class _Moving:
    ours: list[StoredFile] = field(default_factory=list)
    members: dict[str, list[str]] = field(default_factory=dict)
    theirs: list[StoredFile] = field(default_factory=list)
    emptied: list[str] = field(default_factory=list)


def take_over(manifest: Manifest, staging: Staging, folder: Path, hosts: Collection[str]) -> None:
    """Move what the writer with this folder has of these hosts; blocks. Raises OSError, sqlite3.Error, ArrowException.

    It may be done again after it has failed.
    """
    with manifest.other_manifest(folder / "manifest.sqlite") as other:
        theirs = Staging(staging.directory, folder, staging.disk)
        _finish(other, theirs)
        sessions = other.sessions(hosts)
        if not sessions:
            return
        moving = _Moving()
        moved = False
        try:
            for file in other.members(sessions):
                _split(moving, file, sessions, staging, theirs)
            for index, files in ((staging, moving.ours), (theirs, moving.theirs)):
                if files:
                    staging.disk.sync_directory(index.folder)
            other.move(sessions, moving.ours, moving.members, moving.theirs, moving.emptied)
            moved = True
        finally:
            if not moved:
                staging.discard(moving.ours)
                theirs.discard(moving.theirs)
        staging.publish(moving.ours, [])
        manifest.placed([file.path for file in moving.ours])
        _finish(other, theirs)


def take_all(manifest: Manifest, staging: Staging, folder: Path) -> None:
    """Everything of a writer that is not there any more, its files too; blocks. Raises as take_over does."""
    with manifest.other_manifest(folder / "manifest.sqlite") as other:
        theirs = Staging(staging.directory, folder, staging.disk)
        _finish(other, theirs)
        other.move_all()
        theirs.clear()  # nobody else will


def _finish(other: OtherManifest, theirs: Staging) -> None:
    """Put into its place what it has committed."""
    files, removals = other.unfinished()
    if files or removals:
        theirs.publish(files, removals)
        other.placed()


def _split(moving: _Moving, file: StoredFile, sessions: Collection[str], staging: Staging, theirs: Staging) -> None:
    path = staging.directory / file.path
    if not path.exists():  # somebody has removed it
        moving.emptied.append(file.path)
        return
    rows = pq.ParquetFile(path).read()
    names = rows["session"].cast(pa.string())
    ours = pc.is_in(names, pa.array(sorted(sessions)))
    mine, rest = rows.filter(ours), rows.filter(pc.invert(ours))
    if len(mine):
        new = replace(file, stem=staging.stem())
        moving.ours.append(_staged(new, mine, staging))
        moving.members[new.path] = mine["session"].unique().to_pylist()
    if not len(rest):
        moving.emptied.append(file.path)
    elif len(mine):
        moving.theirs.append(_staged(file, rest, theirs, staging.stem()))


def _staged(file: StoredFile, rows: pa.Table, staging: Staging, stem: str = "") -> StoredFile:
    staged = f"{stem or staging.stem()}.parquet"
    write_file(staging.disk, file.name, staging.folder / staged, rows)
    return replace(file, staged=staged, bytes=(staging.folder / staged).stat().st_size)
