"""No kill while saving or rotating loses a run, or changes a bit of its end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.kill_recipes import RECIPES
from tests.programs import run_program


def in_its_own_process(arguments):
    script = Path(__file__).with_name("kill_sweep.py")
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, timeout=580)


def in_a_fork(arguments):
    return run_program(arguments, module="tests.faults.kill_sweep", folder=Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("each", "start"), [pytest.param(3, in_its_own_process, marks=pytest.mark.e2e), (30, in_a_fork)]
)
def test_a_run_killed_at_any_change_on_the_disk_resumes_to_the_same_bits(each, start):
    done = start(["--json", "--each", str(each)])
    report = json.loads(done.stdout)
    seen, swept = report["seen"], report["swept"]
    print(f"killed before {len(swept)} of {len(seen)} changes on the disk")
    assert {change.split()[0] for change in seen} == {"create", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
    assert len(seen) >= 20
    assert "os.rename step-3" in seen, "the rotation is part of the sweep"
    assert len(swept) == -(-len(seen) // each)
    assert report["different"] == []
    assert report["control"] == "the final weights or optimizer state differ"
    assert done.returncode == 0


@pytest.mark.slow
def test_the_recipe_of_every_task_survives_sigkill():
    script = Path(__file__).with_name("kill_recipes.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    print(done.stdout)
    assert done.stdout.count("equal to the bit after SIGKILL and resume") == len(RECIPES) == 6
    assert done.returncode == 0
