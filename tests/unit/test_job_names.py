# SPDX-License-Identifier: Apache-2.0
"""What people call a job, and that no two jobs look alike."""

import pandas as pd
import pytest

from netmon.history.dataset import names_of, requested_job
from netmon.kernel.processes import MOST_JOB_NAME, job_name, script_name
from netmon.report.summary import model_size
from netmon.views import distinct_names

PYTHON = ["/usr/bin/python3.11", "-u", "/home/eve/train.py", "--epochs", "3"]
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "resnet50", "MASTER_ADDR": "node3"}, "resnet50 (Slurm 4711)"),
        ({"SLURM_JOB_ID": "4711"}, "Slurm 4711"),
        (
            {"SLURM_JOB_ID": "4713", "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "2", "SLURM_JOB_NAME": "a"},
            "a (Slurm 4711_2)",
        ),
        ({**KUBERNETES, "HOSTNAME": "bert-worker-3", "MASTER_ADDR": "bert-master-0"}, "bert"),
        ({**KUBERNETES, "HOSTNAME": "bert-master-0", "POD_NAMESPACE": "team-a"}, "team-a/bert"),
        ({**KUBERNETES, "HOSTNAME": "gpt-workers-0-12"}, "gpt"),
        ({**KUBERNETES, "POD_NAME": "indexed-7", "HOSTNAME": "other"}, "indexed"),
        ({**KUBERNETES, "HOSTNAME": "one-pod"}, "one-pod"),
        ({"TORCHELASTIC_RUN_ID": "night-run", "MASTER_ADDR": "node3"}, "night-run"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "node3"}, "train.py@node3"),
        ({"HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "9994"}, "train.py@10.0.0.1"),
        ({"PMIX_HOSTNAME": "node7", "PMIX_NAMESPACE": "prterun-head-1-4711@1"}, "train.py@head-1"),
        ({"PMIX_NAMESPACE": "3236233217", "PMIX_HOSTNAME": "node7"}, "train.py"),  # each rank has another one
        ({"OMPI_MCA_orte_hnp_uri": "3236233216.0;tcp://10.0.0.9,172.17.0.1:33559"}, "train.py@10.0.0.9"),
        ({"OMPI_MCA_orte_hnp_uri": "723386368.0;usock;tcp://10.0.0.9:56672"}, "train.py@10.0.0.9"),
        ({"OMPI_MCA_orte_hnp_uri": "7.0;tcp6://[fd00::1]:56672"}, "train.py@[fd00::1]"),
        ({"OMPI_MCA_orte_hnp_uri": "2783903744.0"}, "train.py"),
        ({}, "train.py"),
        ({"NETMON_JOB": "mine", "SLURM_JOB_ID": "4711"}, ""),
    ],
)
def test_a_job_is_called_what_its_launcher_calls_it(environment, name):
    assert job_name(environment, PYTHON) == name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (PYTHON, "train.py"),
        (["python", "-X", "dev", "-m", "package.train", "x"], "package.train"),
        (["python3", "-W", "error", "run.py"], "run.py"),
        (["python3", "-c", "import os"], "python3"),
        (["/opt/bin/trainer", "--rank", "1"], "trainer"),
        (["python3"], "python3"),
        ([], ""),
        (["", ""], ""),
    ],
)
def test_a_script_is_found_in_its_command(command, name):
    assert script_name(command) == name


def test_a_name_is_bounded_and_can_be_shown():
    long = job_name({"SLURM_JOB_ID": "9" * 10_000, "SLURM_JOB_NAME": "\u202e\x1b[2J" + "ü" * 10_000}, [])
    assert len(long.encode()) <= MOST_JOB_NAME
    assert long.isprintable() or "\ufffd" in long
    assert "\x1b" not in long
    assert "\u202e" not in long
    assert job_name({"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "a\nb"}, []) == "a\ufffdb (Slurm 1)"


def test_jobs_of_one_name_are_told_apart():
    names = {"10.0.0.1:9994": "train.py@node3", "10.0.0.1:9995": "train.py@node3", "x": "bert", "y": ""}
    assert distinct_names(names) == {
        "10.0.0.1:9994": "train.py@node3 [10.0.0.1:9994]",
        "10.0.0.1:9995": "train.py@node3 [10.0.0.1:9995]",
        "x": "bert",
        "y": "y",
    }


@pytest.mark.parametrize(
    "names",
    [
        {"a": "b", "b": ""},
        {"a": "b", "b": "", "b [a]": ""},
        {"a": "b", "c": "b", "b [a]": "", "d": "b [a]"},
        {"a": "b", "b": "a"},
        {str(number): "same" for number in range(50)},
    ],
)
def test_no_name_can_be_chosen_that_makes_two_jobs_look_alike(names):
    shown = distinct_names(names)
    assert shown.keys() == names.keys()
    assert len(set(shown.values())) == len(names)
    assert all(shown[job] == job for job, name in names.items() if not name)


def test_jobs_of_a_dataset_are_asked_for_by_either_name():
    rows = [("a:1", 1, "late.py"), ("a:1", 0, "train.py"), ("b:1", 0, "train.py"), ("c", 0, "c"), ("old", 0, None)]
    names = names_of(pd.DataFrame(rows, columns=["job", "rank", "job_name"]))
    assert names == {"a:1": "train.py [a:1]", "b:1": "train.py [b:1]", "c": "c"}
    assert requested_job("train.py [b:1]", names) == "b:1"
    assert [requested_job(asked, names) for asked in ("a:1", "old", "nobody", None)] == ["a:1", "old", "nobody", None]
    assert names_of(pd.DataFrame({"job": ["a"], "rank": [0]})) == {}


@pytest.mark.parametrize(
    ("rows", "size"),
    [
        ([(0, 0, ""), (10, 20, "calls")], (10, 20, "calls")),
        ([(10, None, None), (None, None, None)], (10, 0, "unknown")),  # of an earlier netmon
        ([(0, 0, "")], (0, 0, "unknown")),
        ([], (0, 0, "unknown")),
    ],
)
def test_the_size_of_a_model_says_who_told(rows, size):
    names = ["parameters", "gradient_bytes", "parameters_basis"]
    found = model_size(pd.DataFrame(rows, columns=names))
    assert tuple(found[name] for name in names) == size
