"""Runs that were spoilt on purpose, and what the doctor says of them.

    python -m tests.benchmarks.doctor [CASE ...]

Each run is a real one, spoilt by its settings or, where no setting does that, by a few lines that are planted in it: a
loader that takes twice the time of a step, reads from the disk itself, lists that keep growing. Gauges are read once a
second instead of every five: the runs are short.

A machine that others use as well has a true cause of its own. So a second verdict is made from the same journal with
the load of programs that do not belong to the benchmark taken out of its readings; the table shows both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from tui_trainer.hardware.environment import prepare_environment

os.environ["HF_HUB_OFFLINE"] = "1"
prepare_environment()
from tui_trainer.advice.examine import Examination, examine
from tui_trainer.config.load import Request
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.lines.plan_and_events import table_lines
from tui_trainer.planning import assemble
from tui_trainer.runs.events import Event, GaugesRead
from tui_trainer.runs.journal import JournalReader
from tui_trainer.runs.state import fold
from tui_trainer.training.batches import Batches
from tui_trainer.training.session import Session

BUSY_PROCESSES = 2
LEAKED_BYTES = 16 * 2**20
DISK_BLOCK_BYTES, DISK_BLOCKS = 4 * 2**20, 32
# Times the rest of a step that a planted wait takes; a step that was held up by others is not waited for as long.
WAIT_SHARE, MOST_WAIT_SECONDS = 2.0, 3.0
_QUIET = ("evaluation.eval_steps=0", "checkpoint.save_steps=0", "logging.sample_steps=0", "evaluation.max_eval_rows=32")
# As often beside the steps as in the whole recipes.
_CLEAN = (
    "evaluation.eval_steps=0.5", "evaluation.max_eval_rows=48", "checkpoint.save_steps=0.5", "logging.sample_steps=0"
)  # fmt: skip
# Wide enough for bf16 to be the best, and for a checkpoint to be worth its name.
_WIDE = ("model.scratch.hidden_size=512", "training.effective_batch_size=4", "training.learning_rate=3e-4")

_HALF = ("training.effective_batch_size=8",)


@dataclass(frozen=True, kw_only=True)
class Case:
    """`expected`: the diagnoses that name what was planted. `plant` is the name of what is planted."""

    expected: tuple[str, ...]
    profile: str = "quickstart"
    steps: int = 26
    settings: tuple[str, ...] = _QUIET
    busy_processes: int = 0
    plant: str = ""


HEALTHY = ("healthy",)
CASES = {
    "slow loader": Case(expected=("waiting_for_data",), plant="slow_loader"),
    "logging each step, large evaluation": Case(
        expected=("evaluations", "journal_writes"),
        settings=("logging.logging_steps=1", "evaluation.eval_steps=4", "checkpoint.save_steps=0",
                  "logging.sample_steps=0"),
    ),
    "padding": Case(
        expected=("padding",), profile="docstring-topics", steps=40,
        settings=(*_QUIET, "data.path={uneven}", "data.max_length=256", "evaluation.metric_for_best_model=loss",
                  "training.learning_rate=1e-4"),
    ),
    "tiny batch": Case(
        expected=("small_batch",), steps=200,
        settings=(*_QUIET, "training.effective_batch_size=1", "data.max_length=16", "training.learning_rate=3e-4"),
    ),
    "one thread": Case(expected=("one_thread",), plant="one_thread"),
    "checkpoint every two steps": Case(
        expected=("checkpoints",), settings=(*_QUIET, *_WIDE, "checkpoint.save_steps=2")
    ),
    "fp32 where bf16 is native": Case(
        expected=("slow_precision",), settings=(*_QUIET, *_WIDE, "training.mixed_precision=no")
    ),
    "others burn the cores": Case(expected=("other_processes",), busy_processes=BUSY_PROCESSES),
    "leaking memory": Case(expected=("memory_growing",), steps=90, plant="leak"),
    "exploding learning rate": Case(
        expected=("learning_rate_high", "not_finite", "gradients_exploding"),
        settings=(*_QUIET, "training.learning_rate=3", "training.max_grad_norm=0"),
    ),
    "data on a slow disk": Case(expected=("slow_disk",), plant="slow_disk"),
    "cache emptied each step": Case(
        expected=("cache_emptied",), settings=(*_QUIET, *_HALF, "training.empty_cache_steps=1")
    ),
    "clean: quickstart": Case(expected=HEALTHY, steps=40, settings=_CLEAN),
    # As it is, half of what this recipe computes is padding: it would be no clean run.
    "clean: classifier": Case(
        expected=HEALTHY, profile="docstring-topics", steps=60, settings=(*_CLEAN, "data.group_by_length=true")
    ),
    "clean: chat": Case(expected=HEALTHY, profile="chat-scratch", steps=40, settings=_CLEAN),
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Runs the named cases, or all; 0 where at least all but one of them are as expected."""
    chosen = [name for name in CASES if not arguments or any(name.startswith(one) for one in arguments)]
    if not chosen:
        print(f"no such case; there are: {', '.join(CASES)}", file=sys.stderr)
        return 2
    rows, right = [], 0
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        for name in chosen:
            case = CASES[name]
            events = run(case, Path(folder), f"case-{list(CASES).index(name)}")
            as_it_is, alone = examine(fold(events)), examine(fold(without_others(events, case)))
            is_right = alone.name in case.expected
            right += is_right
            rows.append((name, "yes" if is_right else "NO", told(alone), told(as_it_is), alone.words))
            print(f"{name}: {'right' if is_right else 'WRONG'}: {alone.words}", flush=True)
    print()
    head = ("planted", "found", "leads", "beside other load", "evidence")
    print("\n".join(table_lines([head, *rows], width=1000)))
    print(f"\n{right} of {len(chosen)} as expected")
    return 0 if right >= len(chosen) - 1 else 1


def told(verdict: Examination) -> str:
    leading = verdict.leading
    return verdict.name if leading is None else f"{verdict.name} ({leading.cost_words})"


def run(case: Case, folder: Path, name: str) -> list[Event]:
    """Carry a case out, as `--no-ui` does; the events of its journal."""
    uneven = folder / "uneven.jsonl"
    if not uneven.exists():
        uneven.write_text("".join(_uneven_rows()), encoding="utf-8")
    settings = (f"training.max_steps={case.steps}", f"output.runs_dir={folder}", f"output.name={name}", *case.settings)
    settings = tuple(one.replace("{uneven}", str(uneven)) for one in settings)
    with busy(case.busy_processes), _PLANTS[case.plant]():
        opened = open_new(load_config(Request(profile=case.profile, assignments=settings)))
        outcome = carry_out(opened, gauges_every_seconds=1.0)
    if outcome.problems:
        raise RuntimeError(f"{name} was refused: {outcome.problems}")
    return list(JournalReader(opened.folder.journal).stream())


def without_others(events: list[Event], case: Case) -> list[Event]:
    """The same readings with the run and what was planted as all that the machine does."""
    if case.busy_processes:
        return events
    return [
        replace(event, machine_cpu_share=event.process_cpu_share, core_wait_share=0.0)
        if isinstance(event, GaugesRead)
        else event
        for event in events
    ]


@contextmanager
def busy(processes: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def _uneven_rows() -> Iterator[str]:
    """Of 16 texts one is long."""
    for place in range(640):
        words = 240 if place % 16 == 0 else 6
        text = " ".join(f"word{(place * 7 + at) % 50}" for at in range(words))
        yield json.dumps({"text": text, "label": "even" if place % 2 else "odd"}) + "\n"


# ------------------------------------------------------------------------------ what no setting spoils


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    real = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, real)


def _one_thread() -> AbstractContextManager[None]:
    return _replaced(assemble, "training_threads", lambda cores: 1)


def _slow_loader() -> AbstractContextManager[None]:
    return _wait_in_loader(sleep)


@contextmanager
def _slow_disk() -> Iterator[None]:
    """Blocks that are in no memory, as many as there is time for."""
    with tempfile.NamedTemporaryFile(prefix="doctor-disk-") as file:
        for _ in range(DISK_BLOCKS):
            file.write(os.urandom(DISK_BLOCK_BYTES))
        file.flush()
        os.fsync(file.fileno())

        def read(seconds: float) -> None:
            until, place = perf_counter() + seconds, 0
            while perf_counter() < until:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                os.pread(file.fileno(), DISK_BLOCK_BYTES, place % DISK_BLOCKS * DISK_BLOCK_BYTES)
                place += 1

        with _wait_in_loader(read):
            yield


def _wait_in_loader(wait: Callable[[float], object]) -> AbstractContextManager[None]:
    """Twice as long as the rest of the step before took."""
    real, ended = Batches.at, [0.0]

    def at(self: Batches, step: int) -> object:
        if ended[0]:
            wait(min(WAIT_SHARE * (perf_counter() - ended[0]), MOST_WAIT_SECONDS))
        window = real(self, step)
        ended[0] = perf_counter()
        return window

    return _replaced(Batches, "at", at)


def _leak() -> AbstractContextManager[None]:
    real, kept = Session.take_step, []

    def take_step(self: Session, step: int) -> None:
        real(self, step)
        kept.append(b"\1" * LEAKED_BYTES)

    return _replaced(Session, "take_step", take_step)


_PLANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "": nullcontext,
    "one_thread": _one_thread,
    "slow_loader": _slow_loader,
    "slow_disk": _slow_disk,
    "leak": _leak,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
