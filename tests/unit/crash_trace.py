# SPDX-License-Identifier: Apache-2.0
"""What a program does to the files below one directory, call by call, as strace sees it."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CALLS = (
    "openat,open,creat,close,dup,dup2,dup3,fcntl,lseek,write,writev,pwrite64,pwritev,ftruncate,fallocate,fsync,"
    "fdatasync,rename,renameat,renameat2,link,linkat,unlink,unlinkat,mkdir,mkdirat,rmdir,clone,clone3,fork,vfork,"
    "truncate,symlink,symlinkat,copy_file_range,sendfile,sync_file_range,mmap,msync,io_uring_enter"
)
_LINE = re.compile(r"^(\d+) +(?:<\.\.\. (\w+) resumed>)?(.*)$", re.DOTALL)
_RESULT = re.compile(r"\) += +(-?\d+|\?)[^()]*(?:\([^()]*\))?$")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_EXCHANGE = "RENAME_EXCHANGE"
_CLONES = ("clone", "clone3", "fork", "vfork")

installed = shutil.which("strace") is not None
"""Whether strace is."""


@dataclass(frozen=True)
class Op:
    """One step: `kind` is make, mkdir, write, resize, sync, rename, exchange, link, unlink, rmdir, or said.

    path, to: below the directory; of an open file that by which it was opened. What is said stands in data.
    """

    kind: str
    path: str = ""
    to: str = ""
    offset: int = 0
    data: bytes = b""


@dataclass
class _Open:
    path: str
    offset: int = 0
    append: bool = False


@dataclass
class _Process:
    files: dict[int, _Open] = field(default_factory=dict)


def record(program: Path, directory: Path, *arguments: str) -> list[Op]:
    """Run `program DIRECTORY SAID ARGUMENTS…`; what it writes to the file SAID becomes an Op of its own."""
    trace, said = directory.with_name("trace"), directory.with_name("said")
    command = ["strace", "-f", "-qq", "-xx", "-s", str(1 << 26), "--seccomp-bpf", "-e", f"trace={CALLS}"]
    command += ["-e", "signal=none", "-o", str(trace), sys.executable, str(program), str(directory), str(said)]
    subprocess.run([*command, *arguments], check=True, cwd=program.parent)
    with trace.open() as lines:
        found = list(parse(lines, str(directory), str(said)))
    trace.unlink()
    return found


def parse(lines: Iterator[str] | Sequence[str], directory: str, said: str) -> Iterator[Op]:
    """The steps below the directory, in the order in which they were over."""
    reader = _Reader(directory, said)
    begun: dict[str, str] = {}
    for line in lines:
        match = _LINE.match(line.rstrip("\n"))
        if not match:
            continue
        pid, resumed, rest = match.groups()
        if rest.endswith("<unfinished ...>"):
            begun[pid] = rest.removesuffix("<unfinished ...>").rstrip()
            reader.meet(pid, begun)
            reader.close_soon(pid, begun[pid])
            continue
        if resumed:
            rest = begun.pop(pid, resumed + "(") + rest
        found = _RESULT.search(rest)
        if not found or found[1] == "?" or int(found[1]) < 0:
            continue
        if resumed == "close":
            continue
        name, _, given = rest[: found.start()].partition("(")
        reader.meet(pid, begun)
        yield from reader.call(pid, name.strip(), given, int(found[1]))


class _Reader:
    def __init__(self, directory: str, said: str) -> None:
        self._root, self._said = directory, said
        self._processes: dict[str, _Process] = {}

    def close_soon(self, pid: str, call: str) -> None:
        """A descriptor that is being closed may be another thread's new one before strace tells of the close's end."""
        if pid in self._processes and (closed := re.match(r"close\((\d+)", call)):
            self._processes[pid].files.pop(int(closed[1]), None)

    def meet(self, pid: str, begun: Mapping[str, str]) -> None:
        """A thread may make its first calls before strace tells of the clone's end: it is of whoever is in a clone."""
        if pid not in self._processes:
            parents = [(by, call) for by, call in begun.items() if call.partition("(")[0] in _CLONES]
            assert len(parents) <= 1, parents
            for parent, call in parents:
                self._begin(self._processes[parent], call, pid)

    def _begin(self, parent: _Process, given: str, pid: str) -> None:
        shared = "CLONE_FILES" in given
        self._processes.setdefault(pid, parent if shared else _Process(dict(parent.files)))

    def call(self, pid: str, name: str, given: str, result: int) -> Iterator[Op]:
        process = self._processes.setdefault(pid, _Process())
        texts = [bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(given)]
        if name in _CLONES:
            self._begin(process, given, str(result))
        elif name in ("openat", "open", "creat"):
            yield from self._open(process, given, self._full(process, given, texts[0].decode()), result)
        elif name in ("rename", "renameat", "renameat2", "link", "linkat"):
            kind = "link" if name.startswith("link") else "exchange" if _EXCHANGE in given else "rename"
            one, other = (self._below(text.decode()) for text in texts[:2])
            assert (one is None) == (other is None), given
            if one is not None and other is not None:
                yield Op(kind, one, other)
        elif name in ("mkdir", "mkdirat", "rmdir", "unlink", "unlinkat"):
            yield from self._name(name, given, self._full(process, given, texts[0].decode()))
        elif name in ("truncate", "symlink", "symlinkat"):
            assert all(self._below(text.decode()) is None for text in texts), given
        else:
            yield from self._of_file(process, name, given, texts, result)

    def _below(self, path: str) -> str | None:
        if path != self._root and not path.startswith(f"{self._root}/"):
            return None
        return path[len(self._root) + 1 :]

    def _open(self, process: _Process, given: str, path: str, descriptor: int) -> Iterator[Op]:
        process.files.pop(descriptor, None)
        below = self._below(path)
        if path == self._said:
            process.files[descriptor] = _Open("\0said")
        elif below is not None:
            process.files[descriptor] = _Open(below, append="O_APPEND" in given)
            assert "O_TMPFILE" not in given, given
            if "O_CREAT" in given:
                yield Op("make", below)
            if "O_TRUNC" in given:
                yield Op("resize", below, offset=0)

    def _full(self, process: _Process, given: str, path: str) -> str:
        """Of a name below an open directory, as shutil.rmtree has it."""
        place = process.files.get(int(given.split(",")[0])) if given[0].isdigit() else None
        return path if place is None or path.startswith("/") else f"{self._root}/{place.path}/{path}"

    def _name(self, name: str, given: str, path: str) -> Iterator[Op]:
        kind = "mkdir" if name.startswith("mkdir") else "unlink"
        if name == "rmdir" or "AT_REMOVEDIR" in given:
            kind = "rmdir"
        if (below := self._below(path)) is not None:
            yield Op(kind, below)

    def _of_file(self, process: _Process, name: str, given: str, texts: list[bytes], result: int) -> Iterator[Op]:
        numbers = [int(word) for word in re.findall(r"\b\d+\b", _TEXT.sub("", given))]
        file = process.files.get(numbers[0]) if numbers else None
        if name == "mmap":
            mapped = process.files.get(int(given.split(",")[4]))
            assert not mapped or "MAP_SHARED" not in given or "PROT_WRITE" not in given or "-shm" in mapped.path, given
            return
        if file is None:
            return
        if name == "close":
            del process.files[numbers[0]]
        elif name in ("dup", "dup2", "dup3") or (name == "fcntl" and "F_DUPFD" in given):
            process.files[result] = file
        elif name == "lseek":
            file.offset = result
        elif file.path == "\0said":
            if name == "write":
                yield Op("said", data=texts[0])
        elif name in ("fsync", "fdatasync"):
            yield Op("sync", file.path)
        elif name == "ftruncate":
            yield Op("resize", file.path, offset=numbers[1])
        elif name in ("write", "writev"):
            assert not file.append, given
            yield Op("write", file.path, offset=file.offset, data=b"".join(texts)[:result])
            file.offset += result
        elif name == "pwrite64":
            yield Op("write", file.path, offset=numbers[-1], data=texts[0][:result])
        else:
            assert name == "fcntl", f"{name}({given[:200]}"
