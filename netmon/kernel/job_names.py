# SPDX-License-Identifier: Apache-2.0
"""What people call a job, out of what its launcher gave to all of its ranks.

It is only a name. What makes a job a job stands in netmon.marks.rank_from_environment: two jobs may have one name,
and a rank that says another one changes nothing. Names are strangers' words: they are cut, and what cannot be shown is
marked.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from netmon.marks import JOB_VARIABLE, printable

MOST_JOB_NAME = 96  # bytes
_MOST_PART = 64
_MOST_READ = 1024  # characters of what has to be searched
_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*$")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
# As Kubeflow's operators, Volcano, JobSet and indexed jobs call their pods.
_REPLICA = re.compile(
    r"(?:-(?:master|worker|launcher|chief|ps|evaluator|head|replica|node|task|workers))?(?:-\d+){1,2}$"
)
_NAMESPACES = ("POD_NAMESPACE", "KUBERNETES_NAMESPACE", "NAMESPACE")
_LAUNCHERS = ("MASTER_ADDR", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "SLURM_LAUNCH_NODE_IPADDR")
# Open MPI 5 and 4 say it among other things (PMIX_HOSTNAME is the rank's own host).
_OPEN_MPI = (
    ("PMIX_NAMESPACE", re.compile(r"prterun-(.+)-\d+@\d+$")),
    ("OMPI_MCA_orte_hnp_uri", re.compile(r"[^;]*;(?:[^;]*;)??tcp6?://(\[[^\]]+\]|[^,:;]+)")),
)
_NO_RUN = ("", "none")  # torchrun's own, where it was given none


def job_name(environment: Mapping[str, str], command: Sequence[str]) -> str:
    """Kubernetes' name of the job, Slurm's, torchrun's, or the script and the host of its launcher, in this order.

    Empty where nobody has a better name than what all ranks have in common. command: as the process was started.
    """
    if environment.get(JOB_VARIABLE):
        return ""
    found = _kubernetes(environment) or _slurm(environment) or _torchrun(environment) or _script(environment, command)
    return printable(found, MOST_JOB_NAME)


def script_name(command: Sequence[str]) -> str:
    """The program's file, module or script without its folder; "" where there is none."""
    words = [word for word in command if word]
    if not words:
        return ""
    program = PurePosixPath(words[0]).name
    if not _INTERPRETER.match(program):
        return _part(program)
    rest = iter(words[1:])
    for word in rest:
        if word == "-m":
            return _part(next(rest, ""))
        if word.startswith("-c"):
            return _part(program)
        if word in _WITH_VALUE:
            next(rest, "")
        elif not word.startswith("-"):
            return _part(PurePosixPath(word).name)
    return _part(program)


def _kubernetes(environment: Mapping[str, str]) -> str:
    """The pod's, without which of the job's pods it is."""
    pod = environment.get("POD_NAME") or environment.get("HOSTNAME", "")
    if not environment.get("KUBERNETES_SERVICE_HOST") or not pod:
        return ""
    job = _part(_REPLICA.sub("", pod) or pod)
    namespace = next((environment[name] for name in _NAMESPACES if environment.get(name)), "")
    return f"{_part(namespace)}/{job}" if namespace else job


def _slurm(environment: Mapping[str, str]) -> str:
    name, number = environment.get("SLURM_JOB_NAME", ""), environment.get("SLURM_JOB_ID", "")
    array, task = environment.get("SLURM_ARRAY_JOB_ID", ""), environment.get("SLURM_ARRAY_TASK_ID", "")
    if array and task:
        number = f"{array}_{task}"
    if not number:
        return ""
    return f"{_part(name)} (Slurm {_part(number)})" if name else f"Slurm {_part(number)}"


def _torchrun(environment: Mapping[str, str]) -> str:
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    return "" if run in _NO_RUN else _part(run)


def _script(environment: Mapping[str, str], command: Sequence[str]) -> str:
    script = script_name(command)
    host = _launcher(environment)
    return f"{script}@{_part(host)}" if script and host else script


def _launcher(environment: Mapping[str, str]) -> str:
    """The host that the job was started from, or where its ranks met, as all of them have it; "" where nobody says."""
    for name in _LAUNCHERS:
        if environment.get(name):
            return environment[name]
    for name, pattern in _OPEN_MPI:
        if found := pattern.match(environment.get(name, "")[:_MOST_READ]):
            return found[1]
    return ""


def _part(text: str) -> str:
    return printable(text.strip(), _MOST_PART)
