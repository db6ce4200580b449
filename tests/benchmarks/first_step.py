"""CPU seconds from the start of the program to its first step, against importing torch and the model's own module.

    python -m tests.benchmarks.first_step [ROUNDS]

Interleaved, each in a process of its own, so that a busy machine slows all of them. The run is a full fine-tune of a
small model of characters; preparing its data is within. Fails above 1.3 times the model's own module.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.test_imports import FIRST_STEP, TEXT, run

MOST = 1.3
SECONDS = "\nimport time; print('seconds', time.process_time())"
PROGRAMS = {
    "torch": "import torch" + SECONDS,
    "torch and the model": "import torch, transformers.models.llama.modeling_llama" + SECONDS,
    "a run at its first step": FIRST_STEP,
}


def cpu_seconds(program: str, home: str) -> float:
    done = run("-c", program, home=home)
    assert done.returncode == 0, done.stderr
    return float(re.findall(r"^seconds ([\d.]+)", done.stdout, re.MULTILINE)[0])


def main(rounds: int) -> int:
    found: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds):
        for name, program in PROGRAMS.items():
            with tempfile.TemporaryDirectory() as home:
                Path(home, "text.txt").write_text(TEXT)
                found[name].append(cpu_seconds(program, home))
    for name, seconds in found.items():
        print(f"{name:26} {median(seconds):6.2f} s of CPU, {min(seconds):.2f} to {max(seconds):.2f}")
    of_model, of_run = (found[name] for name in list(PROGRAMS)[1:])
    ratio = median(run / model for run, model in zip(of_run, of_model, strict=True))
    print(f"ratio {ratio:.2f}, at most {MOST}")
    return int(ratio > MOST)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
