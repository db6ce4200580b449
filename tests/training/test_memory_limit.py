"""A container's limit of memory, as the kernel keeps it: a control group is made, and whole programs run in it.

Nothing is injected: the kernel kills what takes more. Where no group can be made (not root, or a container without the
controller) these tests are skipped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.programs import run_program
from tests.runs.journals import read_all
from tui_trainer.runs.events import CheckpointSaved, RunProblem
from tui_trainer.runs.folder import RunFolder
from tui_trainer.units import GIB, MIB

pytestmark = pytest.mark.e2e

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
# What a run holds on to with each of its steps, and how often the watch reads: seconds instead of a minute.
LEAKING = """
import sys
from tui_trainer.cli import main
from tui_trainer.training import host_memory
from tui_trainer.training.session import Session

host_memory._PERIOD_SECONDS = 0.05
take_step, held = Session.take_step, []

def take_and_hold(self, step):
    held.append(bytearray(b"x") * {bytes_of_a_step})
    take_step(self, step)

Session.take_step = take_and_hold
sys.exit(main(sys.argv[1:]))
"""


# Another program of the group.
OTHER = """
import sys
held = bytearray(b"x") * int(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def limited():
    """`limited(bytes, command)` runs it in a group of that much memory, of which others hold `held_bytes`."""
    made = []

    def run(limit_bytes, command, held_bytes=0):
        root, file = (V1, "memory.limit_in_bytes") if (V1 / "cgroup.procs").is_file() else (V2, "memory.max")
        group = root / f"tui-trainer-test-{os.getpid()}-{len(made)}"
        try:
            group.mkdir()
            made.append(group)
            (group / file).write_text(str(limit_bytes))
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")

        def enter():
            (group / "cgroup.procs").write_text(str(os.getpid()))

        def enter_to_be_killed():
            # Before the others, however much they hold: everybody may give himself a higher score.
            enter()
            Path("/proc/self/oom_score_adj").write_text("1000")

        other = [sys.executable, "-c", OTHER, str(held_bytes)]
        with subprocess.Popen(other, stdin=PIPE, stdout=PIPE, text=True, preexec_fn=enter) as holder:
            assert holder.stdout.readline() == "held\n"
            try:
                return subprocess.run(
                    command, capture_output=True, text=True, timeout=1500, preexec_fn=enter_to_be_killed
                )
            finally:
                holder.stdin.close()

    yield run
    for group in made:
        # What a killed program had begun ends a moment after it, and a group with processes cannot be removed.
        deadline = time.monotonic() + 60
        while left := (group / "cgroup.procs").read_text().split():
            assert time.monotonic() < deadline, left
            for number in left:
                with suppress(ProcessLookupError):
                    os.kill(int(number), signal.SIGKILL)
        group.rmdir()


def settings(tmp_path, **more):
    chosen = {
        "output.runs_dir": tmp_path, "data.max_length": 64, "evaluation.max_eval_rows": 4, "logging.sample_steps": 0,
        "model.scratch.hidden_size": 64, "model.scratch.num_hidden_layers": 2, "model.scratch.num_attention_heads": 2,
        "training.deterministic": "true",
    }  # fmt: skip
    chosen |= {key.replace("__", "."): value for key, value in more.items()}
    return [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]


# Answers about models are kept where programs of their own look for them.
OWN_ANSWERS = """
from tui_trainer.hardware.storage import prepared_data_folder
from tui_trainer.models import counting
counting.prepared_data_folder = prepared_data_folder
"""
PROGRAM = [sys.executable, "-m", "tui_trainer"]


def test_the_limit_is_the_memory_that_a_plan_goes_by(limited, tmp_path):
    done = limited(2 * GIB, [*PROGRAM, "plan", "--json", *settings(tmp_path)])
    assert done.returncode == 0, done.stderr
    assert 0 < json.loads(done.stdout)["memory_budget_bytes"] <= 2 * GIB


def test_a_leak_is_told_and_saved_before_the_kernel_kills(limited, tmp_path):
    """And the run that was killed goes on from there, to the bits of one that nobody disturbed."""
    steps = {"training__max_steps": 170, "checkpoint__save_steps": 0, "evaluation__eval_steps": 0}
    program = [sys.executable, "-c", LEAKING.format(bytes_of_a_step=8 * MIB)]
    leaking = limited(3 * GIB // 2, [*program, "--no-ui", *settings(tmp_path, output__name="leaking", **steps)])
    assert leaking.returncode == -signal.SIGKILL, leaking.stdout[-2000:] + leaking.stderr[-2000:]
    events = read_all(RunFolder(tmp_path / "leaking").journal)
    (warning, *_) = [event for event in events if isinstance(event, RunProblem) and event.kind == "host memory"]
    assert "of the container are left" in warning.message and "is saved" in warning.hint
    saved = [event for event in events if isinstance(event, CheckpointSaved)]
    assert saved and saved[0].reason == "memory runs out" and saved[0].step == warning.step
    resumed = run_program(["resume", "--no-ui", str(tmp_path / "leaking")])
    assert resumed.returncode == 0, resumed.stdout[-2000:] + resumed.stderr[-2000:]
    whole = run_program(["--no-ui", *settings(tmp_path, output__name="whole", **steps)])
    assert whole.returncode == 0
    one, other = (RunFolder(tmp_path / name).model / "model.safetensors" for name in ("leaking", "whole"))
    assert one.read_bytes() == other.read_bytes()


# Of the pass that the kernel should kill less is resident now: the limit has to be found anew.
def test_passes_that_the_kernel_would_kill_are_rehearsed(limited, tmp_path):
    """A plan cannot know what other programs will take. What is named then trains."""
    wide = {
        "data__max_length": 512, "training__effective_batch_size": 128, "training__max_steps": 1,
        "training__per_device_train_batch_size": 128, "model__attn_implementation": "eager",
    }  # fmt: skip
    # The process that counts the model would be killed as well: its answers are there already.
    assert run_program(["plan", "--gpu", "none", *settings(tmp_path, **wide)], prelude=OWN_ANSWERS).returncode == 0
    rehearse = [*PROGRAM, "rehearse", "--json", "--gpu", "none", *settings(tmp_path, **wide)]
    rehearsed = limited(4 * GIB, rehearse, held := int(2.25 * GIB))
    assert rehearsed.returncode == 1, rehearsed.stdout[-2000:] + rehearsed.stderr[-2000:]
    (fault, *_) = json.loads(rehearsed.stdout.splitlines()[-1])["faults"]
    rows = fault["patch"]["training.per_device_train_batch_size"]
    assert 1 <= rows < 128
    smaller = wide | {"training__per_device_train_batch_size": rows}
    trained = limited(4 * GIB, [*PROGRAM, "--no-ui", "--gpu", "none", *settings(tmp_path, **smaller)], held)
    assert trained.returncode == 0, trained.stdout[-2000:] + trained.stderr[-2000:]
