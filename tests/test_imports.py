"""What a start costs: commands that need no torch load none, and `--help` is there at once."""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median
from time import perf_counter

HEAVY = ("torch", "transformers", "datasets", "textual", "peft")
PAIRS = 5
LOOK = f"""
import sys
from tui_trainer.cli import main
codes = [main(["--help"]), main(["plan"]), main(["explain", "data"]), main(["runs"]), main(["profiles"])]
assert codes == [0] * 5, codes
loaded = [name for name in {HEAVY!r} if name in sys.modules]
sys.exit(f"loaded: {{loaded}}" if loaded else 0)
"""


def run(*arguments: str, home: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TUI_TRAINER_HOME": home}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=home, capture_output=True, text=True, timeout=120
    )


def test_light_commands_load_no_heavy_library(tmp_path):
    done = run("-c", LOOK, home=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "tui-trainer --no-ui" in done.stdout and "micro-batch" in done.stdout


def test_the_look_sees_a_heavy_library(tmp_path):
    (tmp_path / "peft.py").write_text("")
    done = run("-c", "import sys; sys.path.insert(0, '.'); import peft" + LOOK, home=str(tmp_path))
    assert done.returncode == 1
    assert "loaded: ['peft']" in done.stderr


def test_help_takes_at_most_twice_the_time_of_its_libraries(tmp_path):
    """A ratio within one run: interleaved, so that a busy machine slows both."""
    seconds: dict[str, list[float]] = {"help": [], "libraries": []}
    commands = {"help": ("-m", "tui_trainer", "--help"), "libraries": ("-c", "import typer, pydantic")}
    for _ in range(PAIRS):
        for name, command in commands.items():
            started = perf_counter()
            assert run(*command, home=str(tmp_path)).returncode == 0
            seconds[name].append(perf_counter() - started)
    assert median(seconds["help"]) <= 2 * median(seconds["libraries"]), seconds
