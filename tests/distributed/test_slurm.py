"""Runs as jobs of Slurm, with a stand-in for its commands (`slurm_stand_in.py`)."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.distributed import slurm_stand_in
from tests.programs import start_program
from tests.runs.journals import read_all, run_of, start, steps
from tui_trainer.cli import main
from tui_trainer.errors import FolderError, InputError
from tui_trainer.launching.submit import limit_seconds
from tui_trainer.runs import delete_and_rename, slurm
from tui_trainer.runs.events import RunStarted, StepDone
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.lock import RunLock
from tui_trainer.runs.overview import overview
from tui_trainer.ui.watch import WatchedRun

SETTINGS = {
    "data.max_length": 32,
    "model.scratch.hidden_size": 16,
    "model.scratch.num_hidden_layers": 1,
    "model.scratch.num_attention_heads": 2,
    "training.effective_batch_size": 4,
    "checkpoint.save_steps": 0,
    "evaluation.eval_steps": 0,
    "evaluation.max_eval_rows": 8,
    "logging.sample_steps": 0,
}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The folder of the commands. Jobs wait as long as the file `full` is in it."""
    folder = tmp_path / "bin"
    slurm_stand_in.install(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "QUERY_INTERVAL_SECONDS", 0.05)
    (folder / "full").touch()
    yield folder
    for job in (folder / "jobs").iterdir() if (folder / "jobs").exists() else ():
        (job / "asked").write_text("cancel")
        wait_until(lambda job=job: json.loads((job / "state").read_text())["state"] not in ("PENDING", "RUNNING"))


def wait_until(is_so, seconds=300):
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)


def words(tmp_path, name, **more):
    settings = SETTINGS | {"output.runs_dir": tmp_path / "runs", "output.name": name} | more
    return [
        "--profile",
        "quickstart",
        *(part for key, value in settings.items() for part in ("--set", f"{key}={value}")),
    ]


def submit(tmp_path, *options, name="job"):
    return main(["submit", *words(tmp_path, name), *options])


def test_time_limits_are_read_as_the_manual_of_slurm_says(subtests):
    for text, seconds in (
        ("90", 5400), ("5:30", 330), ("8:00:00", 28_800), ("2-12", 216_000), ("1-0:30", 88_200), ("1-1:1:1", 90_061),
        ("0", 0), ("8h", None), ("1:2:3:4", None), ("", None), ("1-", None), ("-5", None), ("8:00:00 --x", None),
    ):  # fmt: skip
        with subtests.test(repr(text)):
            assert limit_seconds(text) == seconds


def test_the_script_asks_for_what_was_named(tmp_path, capsys):
    options = ["--time", "8:00:00", "--partition", "gpu", "--gpus", "4", "--cpus", "16", "--sbatch=--account=physics"]
    assert submit(tmp_path, *options, "--dry-run") == 0
    root = tmp_path / "runs" / "job"
    assert capsys.readouterr().out.splitlines() == [
        "#!/bin/bash",
        "#SBATCH --job-name=job",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --cpus-per-task=16",
        "#SBATCH --time=8:00:00",
        "#SBATCH --partition=gpu",
        f"#SBATCH --output={root}/logs/job-%j.txt",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        "#SBATCH --signal=B:USR1@300",
        "#SBATCH --account=physics",
        f"exec {sys.executable} -P -m tui_trainer resume {root} --no-ui",
    ]
    assert not root.exists()


def test_a_path_of_any_name_is_one_option_and_one_word_of_the_shell(tmp_path, capsys, subtests):
    for name, written in (
        ("a b", '"{}/a b/job/logs/job-%j.txt"'),
        ("a#b", r'"{}/a\#b/job/logs/job-%j.txt"'),
        ('a"b', r'"{}/a\"b/job/logs/job-%j.txt"'),
        ("a\\b", r'"{}/a\\b/job/logs/job-%j.txt"'),
        ("100%", "{}/100%%/job/logs/job-%j.txt"),
        ("$(x)'y", '"{}/$(x)\'y/job/logs/job-%j.txt"'),
    ):
        with subtests.test(name):
            assert submit(tmp_path, "--set", f"output.runs_dir={tmp_path}/{name}", "--dry-run") == 0
            lines = capsys.readouterr().out.splitlines()
            assert "#SBATCH --output=" + written.format(tmp_path) in lines
            words = shlex.split(lines[-1])
            assert words[6] == f"{tmp_path}/{name}/job" and len(words) == 8
    for name in ("a\n#SBATCH --wrap=x", "a\x1b[2Jb", "a\rb"):
        with subtests.test(repr(name)):
            assert submit(tmp_path, "--set", f"output.runs_dir={tmp_path}/{name}", "--dry-run") == 2
            found = capsys.readouterr()
            assert not found.out
            assert "batch scripts cannot have; set output.runs_dir to another folder" in found.err


def test_several_nodes_are_started_by_srun(tmp_path, capsys):
    assert submit(tmp_path, "--nodes", "2", "--time", "10", "--cpus", "8", "--dry-run") == 0
    *_, signals, cores, last = capsys.readouterr().out.splitlines()
    assert signals == "#SBATCH --signal=B:USR1@150" and cores == "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
    assert last.startswith("exec srun --kill-on-bad-exit=1 --nodes=2 --ntasks-per-node=1 ")


def test_a_job_that_cannot_be_submitted_is_refused_before_anything_is_made(tmp_path, cluster, capsys, subtests):
    for options, message in (
        ([], "add --yes to submit the script"),
        (["--yes", "--time", "8h"], "--time '8h' is not a Slurm time; use a form such as 90 (minutes), 8:00:00 or"),
        (["--yes", "--sbatch", "account=physics"], "'account=physics' is not an option of sbatch"),
        (["--yes", "--sbatch", "--account=a\nrm -r x"], "is not an option of sbatch"),
        (["--yes", "--partition", "a\nb"], "is not an option of sbatch"),
        (["--yes", "--nodes", "0"], "--nodes"),
        (["--yes", "--set", "training.max_stepz=3"], "max_stepz"),
    ):
        with subtests.test(" ".join(options)):
            assert submit(tmp_path, *options) == 2
            assert message in capsys.readouterr().err
            assert not (tmp_path / "runs").exists() and not (cluster / "jobs").exists()


def test_without_sbatch_the_script_is_written_and_its_command_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert submit(tmp_path) == 0
    root = tmp_path / "runs" / "job"
    told = capsys.readouterr()
    assert (
        f"sbatch is not available on this machine; submit it with `sbatch {root}/job.sh` on a machine that has"
        in told.err
    )
    assert (root / "job.sh").read_text() == told.out and (root / "config.toml").exists()


def test_a_refusal_of_sbatch_is_shown_in_its_own_words(tmp_path, cluster, capsys):
    assert submit(tmp_path, "--yes", "--partition", "nowhere") == 1
    assert "sbatch refused the job: sbatch: error: invalid partition specified: nowhere" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_job_whose_number_cannot_be_saved_is_reported_with_its_number(tmp_path, cluster, capsys, monkeypatch):
    def full(folder, job):
        raise FolderError("cannot be used: No space left on device", where="job.json")

    monkeypatch.setattr(slurm, "remember_job", full)
    assert submit(tmp_path, "--yes") == 1
    told = capsys.readouterr().err
    assert "job 1 is queued" in told and "No space left on device" in told and "`scancel 1`" in told


@pytest.mark.full
def test_a_job_waits_with_its_reason_and_stop_cancels_it(tmp_path, cluster, capsys):
    assert submit(tmp_path, "--yes") == 0
    folder = RunFolder.open(tmp_path / "runs" / "job")
    assert f"submitted job as job 1; all nodes must be able to access {folder.root}" in capsys.readouterr().out
    assert overview(folder).status == "submitted"
    assert slurm.job_of(folder) == "1" and str(slurm.queue_state("1")) == "pending (Resources)"
    watched = WatchedRun(folder)
    wait_until(lambda: watched.poll() and watched.events)
    assert watched.alive and list(watched.events) == [("job 1: pending (Resources)", "text")]
    assert "the run can only be stopped" in watched.ask("pause")
    assert main(["ask", "job", "save"]) == 2
    assert watched.ask("stop") == ""
    wait_until(lambda: str(slurm.queue_state("1")) == "cancelled")
    wait_until(lambda: watched.read_new_events() or not watched.alive)
    assert main(["attach", "job", "--no-ui"]) == 1
    assert "job: job 1: cancelled; resume the run with `tui-trainer resume job`" in capsys.readouterr().err
    assert main(["stop", "job"]) == 2


@pytest.mark.full
def test_a_run_whose_job_waits_keeps_its_name_and_its_folder(tmp_path, cluster, capsys):
    assert submit(tmp_path, "--yes") == 0
    root = tmp_path / "runs" / "job"
    for command in (["delete", "job", "--yes"], ["rename", "job", "other"]):
        assert main(command) == 2
        assert "job 1 of this run is in the queue; `tui-trainer stop job` removes the job" in capsys.readouterr().err
    with pytest.raises(FolderError, match="in the queue"):
        delete_and_rename.bytes_to_free(root)
    assert main(["stop", "job"]) == 0
    assert "cancelled job 1 of job" in capsys.readouterr().out
    wait_until(lambda: not slurm.active_job(RunFolder(root)))
    assert main(["delete", "job", "--yes"]) == 0 and not root.exists()


def test_a_run_is_shown_where_slurm_does_not_answer(tmp_path, monkeypatch, capsys):
    folder = run_of(tmp_path, "old", start(), *steps(1, 3))
    slurm.remember_job(folder, "5")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert slurm.queue_state("5") is None and slurm.active_job(folder) == ""
    assert main(["attach", "old", "--no-ui"]) == 1
    assert "the process of the run has ended for an unknown reason" in capsys.readouterr().err


def test_a_job_that_slurm_has_forgotten_has_ended(cluster):
    assert slurm.queue_state("99") == slurm.NO_JOB_STATE and str(slurm.NO_JOB_STATE) == "no longer in the queue"


def test_a_job_that_may_not_be_queued_again_is_reported(cluster):
    (cluster / "jobs" / "1").mkdir(parents=True)
    (cluster / "jobs" / "1" / "state").write_text(json.dumps({"state": "COMPLETED", "reason": "None", "options": {}}))
    with pytest.raises(slurm.RunError, match="job 1 was not requeued: Requested operation is presently disabled"):
        slurm.requeue("1")


def lock_of(tmp_path, job):
    """As a node has left it that was killed."""
    path = tmp_path / "run.lock"
    content = {"host": "another", "pid": 7, "process_started": 1.0, "at": "2026-11-23T08:00:00Z", "job": job}
    path.write_text(json.dumps(content))
    return RunLock(path)


def test_the_next_start_of_a_job_takes_over_from_a_node_that_died(tmp_path, monkeypatch, cluster):
    monkeypatch.setenv("SLURM_JOB_ID", "3")
    with pytest.raises(FolderError, match="in use by process 7 on host another"):
        lock_of(tmp_path, "3.0").acquire()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with lock_of(tmp_path, "3.0"):
        assert json.loads((tmp_path / "run.lock").read_text())["job"] == "3.1"
    # Of a job that Slurm does not know any more.
    with lock_of(tmp_path, "99.0"):
        pass
    with pytest.raises(FolderError, match="in use"):
        lock_of(tmp_path, "").acquire()


def test_several_tasks_on_one_node_are_refused(monkeypatch):
    for name, value in {"SLURM_JOB_ID": "1", "SLURM_STEP_NUM_NODES": "1", "SLURM_LOCALID": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="Slurm has started several tasks on this node"):
        slurm.Allocation.of_this_process()


class Job:
    """`tui-trainer submit --no-ui`, on a cluster that has room."""

    def __init__(self, tmp_path, cluster, **more):
        (cluster / "full").unlink(missing_ok=True)
        self.folder = RunFolder(tmp_path / "runs" / "job")
        command = ["submit", *words(tmp_path, "job", **more), "--yes", "--no-ui"]
        self.output = tmp_path / "job.txt"
        with self.output.open("wb") as file, Path(os.devnull).open("rb") as nothing:
            self.process = start_program(command, files=[nothing.fileno(), file.fileno(), file.fileno()])

    def steps(self):
        return [event for event in read_all(self.folder.journal) if isinstance(event, StepDone)]

    def limit(self):
        """Comes near once the run has done some steps."""
        wait_until(lambda: len(self.steps()) >= 20)
        subprocess.run(["scontrol", "update", "JobId=1", "TimeLimit=0"], check=True)

    def starts(self):
        return [event for event in read_all(self.folder.journal) if isinstance(event, RunStarted)]

    def end(self):
        code = self.process.wait(1500)
        return code, self.output.read_text() + (self.folder.logs / "job-1.txt").read_text()


@pytest.mark.e2e
def test_a_run_that_is_queued_again_ends_as_one_that_was_not(tmp_path, cluster, forked_ranks):
    length = {"training.max_steps": 600, "training.cpu_threads": 1}
    several = {"distributed.nodes": 2, "distributed.rendezvous": "127.0.0.1"}
    assert main(["--no-ui", *words(tmp_path, "whole", **length, **{"distributed.processes": 2})]) == 0
    job = Job(tmp_path, cluster, **length, **several)
    job.limit()
    code, output = job.end()
    assert code == 0, output
    assert output.count("is near its time limit: the run is saved at step") == 1 and "job 1: running" in output
    assert job.starts()[0].resumed_from_step is None and len(job.starts()) == 2
    mine, theirs = (folder.model / "model.safetensors" for folder in (job.folder, RunFolder(tmp_path / "runs/whole")))
    assert mine.read_bytes() == theirs.read_bytes()
    wait_until(lambda: slurm.queue_state("1").state == "COMPLETED")


@pytest.mark.e2e
def test_a_stop_ends_a_job_without_another_start(tmp_path, cluster):
    job = Job(tmp_path, cluster, **{"training.max_steps": 100_000})
    wait_until(lambda: job.steps())
    assert main(["stop", "job"]) == 0
    code, output = job.end()
    assert code == 3 and len(job.starts()) == 1, output
    wait_until(lambda: slurm.queue_state("1").state == "FAILED")
