# SPDX-License-Identifier: Apache-2.0
"""The training job of a run: one process per rank, each in its host."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from netmon.errors import LabError
from netmon.lab.injections.spec import pauses_of, transfers_of
from netmon.lab.nccl_library import CUDART, NCCL, Version, build
from netmon.lab.network import INTERFACE, Network, rdma_address
from netmon.lab.process import PRIORITY, Process
from netmon.lab.spec import PARALLEL_TRAINERS, RunSpec
from netmon.lab.trainers.collectives import PORT

_HERE = Path(__file__).parent
_TRAINERS = _HERE / "trainers"
BUILD = ("bash", str(_HERE / "build_horovod.sh"))
_FINISHED = re.compile(r"^iteration \d+ took", re.MULTILINE)
RING_JOB, NCCL_JOB = "ring", "nccl"
TIMELINE = "timeline.json"
_SCRIPTS = {
    "horovod": ("horovod_torch.py",),
    "horovod-tensorflow": ("horovod_tensorflow.py", "--loop", "graph"),
    "horovod-eager": ("horovod_tensorflow.py", "--loop", "eager"),
    "horovod-keras": ("horovod_tensorflow.py", "--loop", "keras"),
}
"""What runs as which of HOROVOD_TRAINERS."""


def trainer_python(spec: RunSpec) -> str:
    """The interpreter that the trainer runs in; an environment that is missing is built first. Raises LabError."""
    if spec.trainer in ("ring", "nccl", "generated"):
        return sys.executable
    if spec.trainer == "jax":
        return horovod_python("jax")
    return horovod_python("tensorflow" if "horovod_tensorflow.py" in _SCRIPTS.get(spec.trainer, ()) else "torch")


def horovod_python(framework: str = "torch") -> str:
    """The interpreter of an environment with real Horovod; built first where it is missing (minutes, once).

    framework: torch or tensorflow; or jax, which Horovod does not know. Raises LabError.
    """
    # A session of its own: who interrupts the lab ends all that the script has started.
    command, silent = [*BUILD, framework], subprocess.DEVNULL
    with subprocess.Popen(command, stdin=silent, stdout=subprocess.PIPE, text=True, start_new_session=True) as build:
        try:
            output, _ = build.communicate()
        except BaseException:
            os.killpg(build.pid, signal.SIGTERM)
            raise
    if build.returncode:
        raise LabError("cannot run the Horovod trainer: building Horovod failed, see above; --trainer ring needs none")
    return output.strip().splitlines()[-1]


class Training(AbstractContextManager["Training"]):
    """All ranks of a job; leaving the context ends them."""

    def __init__(
        self,
        spec: RunSpec,
        network: Network,
        folder: Path,
        python: str = sys.executable,
        port: int = PORT,
        pace: Path | None = None,
        hangs: Path | None = None,
    ) -> None:
        """Start every rank. folder: for rank-R.csv and log/; python: the trainer's interpreter.

        port: on which ranks listen, or PyTorch's and JAX' rank 0, for jobs that share a host. pace: the file that
        tells them when to begin (netmon.lab.trainers.ring). hangs: the file that tells a rank of real training to
        stand still (netmon.lab.trainers.script).
        """
        self._spec, self._folder, self._port, self._pace = spec, folder, port, pace
        self._hangs = hangs
        self._hosts = [network.hosts[number] for number in spec.ring]
        self._addresses = [host.address for host in network.hosts]
        self._sockets = network.lease.folder
        self._stack = contextlib.ExitStack()
        self.ranks: list[Process] = []
        with self._stack:  # ends what was started if one cannot be
            starts = dict.fromkeys(("ring", "generated"), self._start_ring)
            starts |= dict.fromkeys(("ddp", "nccl", *PARALLEL_TRAINERS), self._start_torch) | {"jax": self._start_jax}
            start = starts.get(spec.trainer, self._start_horovod)
            self.job = start(python)
            self._stack = self._stack.pop_all()

    def iterations_done(self) -> int:
        """How many iterations rank 0 has finished."""
        return len(_FINISHED.findall(self.ranks[0].output()))

    def finished(self) -> bool:
        """Whether all ranks have ended well. Raises LabError if one has not."""
        for rank in self.ranks:
            rank.check()
        return all(rank.status() is not None for rank in self.ranks)

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _start_ring(self, python: str) -> str:
        addresses = ",".join(host.address for host in self._hosts)
        if self._spec.generator:
            script, model = "generated", ["--generator", str(self._spec.generator), "--seed", str(self._spec.seed)]
        else:
            script, model = "ring", [*self._model(), "--compute-ns", str(self._spec.compute_ns)]
            model += ["--pattern", self._spec.pattern, *(["--pace", str(self._pace)] if self._pace else [])]
        where = ["--addresses", addresses, "--port", str(self._port)]
        command = [python, "-m", f"netmon.lab.trainers.{script}", *where, *model]
        job = self._spec.job or RING_JOB
        for rank in range(len(self._hosts)):
            environment = {"RANK": str(rank), "WORLD_SIZE": str(len(self._hosts)), "NETMON_JOB": job}
            self._start_rank(rank, command, environment)
        return job

    def _start_horovod(self, python: str) -> str:
        first, size = self._hosts[0], len(self._hosts)
        slots = ",".join(f"{host.name}:1" for host in self._hosts)
        serve = [python, str(_TRAINERS / "rendezvous.py"), slots]
        rendezvous = self._stack.enter_context(Process("rendezvous", serve, self._folder / "log", host=first))
        port = rendezvous.wait_output(r"rendezvous port (\d+)", 60)[1]
        compute = ["--compute", str(self._spec.compute_ns / 1e9)]
        script, *options = _SCRIPTS[self._spec.trainer]
        command = [python, str(_TRAINERS / script), *options, *self._model(), *compute]
        if self._spec.marks:
            command.append("--marks")
        named = {"NETMON_JOB": self._spec.job} if self._spec.job else {}
        path = self._import_path()
        for rank, host in enumerate(self._hosts):
            environment = {
                "HOROVOD_RANK": rank,
                "HOROVOD_SIZE": size,
                "HOROVOD_LOCAL_RANK": 0,
                "HOROVOD_LOCAL_SIZE": 1,
                "HOROVOD_CROSS_RANK": rank,
                "HOROVOD_CROSS_SIZE": size,
                "HOROVOD_HOSTNAME": host.name,
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": first.address,
                "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_GLOO_IFACE": INTERFACE,
                "OMP_NUM_THREADS": 1,
                "TF_CPP_MIN_LOG_LEVEL": 2,  # what it says of the CPU's features is not of interest
                "PYTHONPATH": path,
            }
            if self._spec.timeline:  # of all ranks, or they wait for each other; rank 0 writes it
                environment["HOROVOD_TIMELINE"] = self._folder / TIMELINE
            variables = {name: str(value) for name, value in environment.items()}
            self._start_rank(rank, command, {**variables, **named})
        return self._spec.job or f"{first.address}:{port}"  # where nobody names the job, its rendezvous does

    def _start_torch(self, python: str) -> str:
        first, size = self._hosts[0], len(self._hosts)
        compute = ["--compute", str(self._spec.compute_ns / 1e9)]
        trainer = self._spec.trainer
        if trainer == "nccl":
            addresses = ",".join(rdma_address(number) for number in self._spec.ring)
            libraries = [str(build(self._sockets / "nccl", Version(), name)) for name in (NCCL, CUDART)]
            program = ["-m", "netmon.lab.trainers.nccl", "--libraries", *libraries, "--addresses", addresses]
        else:
            script, *kind = ["ddp_torch.py"] if trainer == "ddp" else ["parallel_torch.py", "--kind", trainer]
            program = [str(_TRAINERS / script), *kind]
        command = [python, *program, *self._model(), *compute]
        job = self._spec.job or (NCCL_JOB if trainer == "nccl" else "")
        named = {"NETMON_JOB": job} if job else {}
        for rank in range(size):
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": "0",
                "MASTER_ADDR": first.address,
                "MASTER_PORT": str(self._port),
                "GLOO_SOCKET_IFNAME": INTERFACE,
                "OMP_NUM_THREADS": "1",
            }
            trace = ["--profile", str(self._folder / f"rank-{rank}.pt.trace.json")] if self._spec.profile else []
            self._start_rank(rank, [*command, *trace], {**environment, **named})
        return job or f"{first.address}:{self._port}"

    def _start_jax(self, python: str) -> str:
        coordinator = f"{self._hosts[0].address}:{self._port}"
        compute = ["--compute", str(self._spec.compute_ns / 1e9)]
        command = [python, str(_TRAINERS / "jax_script.py"), *self._model(), *compute]
        named = {"NETMON_JOB": self._spec.job} if self._spec.job else {}
        for rank in range(len(self._hosts)):
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(self._hosts)),
                "JAX_COORDINATOR_ADDRESS": coordinator,
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
            }
            self._start_rank(rank, command, {**environment, **named})
        return self._spec.job or coordinator

    def _import_path(self) -> str:
        """A folder with netmon in it and nothing else: Horovod's environment has packages of its own."""
        folder = self._sockets / "import"
        folder.mkdir(exist_ok=True)
        link = folder / "netmon"
        if not link.is_symlink():
            link.symlink_to(_HERE.parent)
        return str(folder)

    def _model(self) -> list[str]:
        layers = ["--layers", str(self._folder / "layers.json")] if self._spec.layers else []
        return ["--params", str(self._spec.parameters), *layers, "--backward-share", str(self._spec.backward_share)]

    def _start_rank(self, rank: int, command: list[str], environment: dict[str, str]) -> None:
        host = self._hosts[rank]
        log = ["--iterations", str(self._spec.iterations), "--log", str(self._folder / f"rank-{rank}.csv")]
        if pauses := pauses_of(self._spec.injections):
            log += ["--pauses", pauses]
        if transfers := transfers_of(self._spec.injections, rank, self._addresses, self._spec.rate_bps):
            log += ["--transfers", transfers]
        if self._hangs:
            log += ["--hangs", str(self._hangs)]
        environment["NETMON_SOCKET"] = str(self._sockets / f"{host.name}.sock")
        name, logs = f"rank-{rank}", self._folder / "log"
        process = Process(name, [*PRIORITY, *command, *log], logs, host=host, environment=environment)
        self.ranks.append(self._stack.enter_context(process))
