"""A kill while saving or rotating loses no run, and does not change a bit of its result."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.kill_recipes import RECIPES
from tests.programs import run_program


def in_its_own_process(arguments):
    script = Path(__file__).with_name("kill_sweep.py")
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)


def in_a_fork(arguments):
    return run_program(arguments, module="tests.faults.kill_sweep", folder=Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("interval", "start", "more"),
    [
        pytest.param(3, in_its_own_process, (), marks=pytest.mark.slow),
        pytest.param(9, in_a_fork, (), marks=pytest.mark.e2e),
        pytest.param(9, in_a_fork, ("--background", "--set=model.dtype=bfloat16"), marks=pytest.mark.e2e),
    ],
)
def test_a_run_killed_at_any_change_on_the_disk_resumes_to_the_same_bits(interval, start, more):
    done = start(["--json", "--each", str(interval), *more])
    report = json.loads(done.stdout)
    changes, kills = report["seen"], report["swept"]
    assert {change.split()[0] for change in changes} == {"create", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
    assert len(changes) >= 20
    assert "os.rename step-3" in changes, "the rotation is part of the sweep"
    assert len(kills) == -(-len(changes) // interval)
    assert report["different"] == []
    assert report["control"] == "the final weights or optimizer state differ"
    assert done.returncode == 0


@pytest.mark.slow
def test_the_recipe_of_every_task_survives_sigkill():
    script = Path(__file__).with_name("kill_recipes.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.stdout.count("equal to the bit after SIGKILL and resume") == len(RECIPES) == 6, done.stdout
    assert done.returncode == 0
