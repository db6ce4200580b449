"""One process against two and four, in copies and in parts: each task, full and LoRA, packed and padded, one pass in a
step and three, with rows that no number of processes divides; of copies, parts and numbers of processes each pair. The
largest differences are printed: pytest -rP.
"""

from __future__ import annotations

import os
import socket
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from tests.distributed.outcomes import events, weights
from tests.programs import start_program
from tests.simulated_card.cases import TASKS
from tests.tiny_models import save_tiny_model, texts
from tests.trained_runs import write_rows
from tui_trainer.config.load import Request
from tui_trainer.launching.open_run import load_config
from tui_trainer.launching.prepare import exact_plan
from tui_trainer.runs.events import EvalDone, StepDone
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalWriter

ROOT = Path(__file__).parent.parent.parent
STEPS, ROWS, EVAL_ROWS = 8, 35, 9
SETTINGS = {
    "data.max_length": 64,
    # 11, 11, 11 and 2 rows: in the last step of an epoch two of four processes have none.
    "training.effective_batch_size": 11,
    "training.learning_rate": 0.005,
    # A step of Adam is as large for a gradient that is nearly 0.
    "training.adam_epsilon": 1e-3,
    "training.max_steps": STEPS,
    "training.loss_chunk_tokens": 16,
    "evaluation.eval_steps": 4,
    "evaluation.generate_rows": 1,
    "checkpoint.save_steps": 0,
    "logging.sample_steps": 0,
    "logging.logging_steps": 4,
    "model.kernels": "none",
}
PACKING = ("causal_lm", "chat")
# Of one variant, and of the next.
GROUPS = ((("ddp", 2), ("fsdp", 4)), (("ddp", 4), ("fsdp", 2)))
LOSS, NORM, WEIGHT = 1e-6, 1e-6, 1e-5


@dataclass(frozen=True)
class Variant:
    """Of one task: what each number of processes has to learn alike."""

    task: str
    method: str
    packed: bool
    passes: int

    def __str__(self):
        laid = "packed" if self.packed else "padded"
        return f"{self.task} {self.method} {laid} {self.passes} {'pass' if self.passes == 1 else 'passes'}"

    @property
    def settings(self):
        lora = {"tuning.r": 4, "tuning.target_modules": "all-linear"} if self.method == "lora" else {}
        laid = {"data.packing": str(self.packed).lower()} if self.task in PACKING else {}
        return {"tuning.method": self.method, "training.gradient_accumulation_steps": self.passes} | lora | laid


def variants(task):
    methods = ("full",) if task == "char_lm" else ("full", "lora")
    layouts = (False, True) if task in PACKING else (False,)
    return [Variant(task, *chosen) for chosen in product(methods, layouts, (1, 3))]


def planned(place, base, name, settings):
    """The folder of a run that is ready to be trained."""
    assignments = tuple(f"{key}={value}" for key, value in (base | settings).items())
    folder = RunFolder.create(place / "runs", name)
    with JournalWriter(folder.journal) as journal:
        exact_plan(load_config(Request(assignments=assignments)), folder, journal, lambda *_: None, gpu=None)
    folder.journal.unlink()
    return folder


def base_of(place, task):
    """What all runs of a task have."""
    case = TASKS[task]
    data = [
        write_rows(place / f"{name}.jsonl", [case.row(n, text) for n, text in enumerate(texts(count))])
        for name, count in (("train", ROWS), ("held-out", EVAL_ROWS))
    ]
    model = {"model.model_name_or_path": save_tiny_model(place / case.family, case.family)} if case.family else {}
    paths = {"task.type": task, "data.path": data[0], "data.eval_path": data[1]}
    # A conversation has 71 tokens: two find room in a packed row.
    length = {"data.max_length": 160} if task == "chat" else {}
    return SETTINGS | case.settings | model | paths | length


def train_all(place, folders, processes):
    """Carry the runs out one after the other, in as many processes."""
    runs = place / f"of-{processes}.txt"
    runs.write_text("".join(f"{folder.root}\n" for folder in folders))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with tempfile.TemporaryFile() as log, open(os.devnull, "rb") as nothing:  # noqa: PTH123
        ranks = [
            start_program(
                [str(runs)],
                module="tests.distributed.rank_of_many_runs",
                folder=ROOT,
                environment=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                files=(nothing.fileno(), log.fileno(), log.fileno()),
            )
            for rank in range(processes)
        ]
        try:
            codes = [rank.wait(1500) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        log.seek(0)
        assert codes == [0] * processes, log.read().decode()


def apart(one, other):
    """The relative difference of two numbers."""
    return abs(one - other) / max(abs(one), abs(other), 1e-12)


def differences(alone, together):
    """The largest of losses, of norms of gradients, of held-out losses and scores, and of weights."""
    steps = list(zip(events(alone, StepDone), events(together, StepDone), strict=True))
    assert len(steps) == STEPS
    for one, two in steps:
        assert (one.step, one.tokens, one.input_tokens, one.samples) == (
            two.step, two.tokens, two.input_tokens, two.samples,
        )  # fmt: skip
    held_out = list(zip(events(alone, EvalDone), events(together, EvalDone), strict=True))
    assert len(held_out) == 2
    scored = []
    for one, two in held_out:
        assert (one.tokens, one.scores.keys(), one.table_rows) == (two.tokens, two.scores.keys(), two.table_rows)
        scored += [apart(one.loss, two.loss), *(apart(one.scores[name], two.scores[name]) for name in one.scores)]
    mine, theirs = weights(alone), weights(together)
    assert mine.keys() == theirs.keys()
    return {
        "loss": max(apart(one.loss_sum, two.loss_sum) for one, two in steps),
        "norm": max(apart(one.grad_norm, two.grad_norm) for one, two in steps),
        "scores": max(scored),
        "weight": max(float((mine[name] - theirs[name]).abs().max()) for name in mine),
    }


def positions(folder):
    return sum(event.positions for event in events(folder, StepDone))


@pytest.mark.parametrize(
    ("task", "some"),
    [
        *(pytest.param(task, False, marks=pytest.mark.slow, id=task) for task in TASKS),
        pytest.param("causal_lm", True, marks=pytest.mark.e2e, id="causal_lm, each pair"),
    ],
)
def test_any_number_of_processes_learns_what_one_does(tmp_path, task, some):
    base, found = base_of(tmp_path, task), variants(task)
    if some:
        # Each two of method, layout and number of passes.
        found = [one for n, one in enumerate(found) if not n.bit_count() % 2]
    alone = {one: planned(tmp_path, base, f"alone-{n}", one.settings) for n, one in enumerate(found)}
    together = {}
    for n, one in enumerate(found):
        # Three bits of the number: each method, layout and number of passes meets both.
        for strategy, processes in GROUPS[(n if some else n.bit_count()) % 2]:
            changes = {"distributed.processes": processes, "distributed.strategy": strategy}
            together[one, strategy, processes] = planned(
                tmp_path, base, f"{strategy}-{processes}-{n}", one.settings | changes
            )
    train_all(tmp_path, alone.values(), 1)
    for processes in (2, 4):
        train_all(tmp_path, [folder for key, folder in together.items() if key[2] == processes], processes)
    laid = {(one.passes, one.packed): positions(folder) for one, folder in alone.items()}
    assert all(laid[passes, True] != laid[passes, False] for passes, packed in laid if packed)
    check(alone, together)


@pytest.mark.e2e
def test_two_nodes_with_all_parts_each_learn_what_one_process_does(tmp_path):
    base, found = (
        base_of(tmp_path, "causal_lm"),
        [Variant("causal_lm", method, False, 3) for method in ("full", "lora")],
    )
    alone = {one: planned(tmp_path, base, f"alone-{n}", one.settings) for n, one in enumerate(found)}
    nodes = {"distributed.nodes": 2, "distributed.processes": 2, "distributed.strategy": "hsdp"}
    together = {
        (one, "hsdp", 4): planned(tmp_path, base, f"nodes-{n}", one.settings | nodes) for n, one in enumerate(found)
    }
    train_all(tmp_path, alone.values(), 1)
    train_all(tmp_path, together.values(), 4)
    check(alone, together)


def check(alone, together):
    wrong = []
    for (one, strategy, processes), folder in together.items():
        largest = differences(alone[one], folder)
        shown = ", ".join(f"{name} {value:.1e}" for name, value in largest.items())
        print(f"{one}, {strategy} of {processes}: {shown}")
        allowed = {"loss": LOSS, "norm": NORM, "scores": LOSS, "weight": WEIGHT}
        wrong += [f"{one}, {strategy} of {processes}: {shown}" for name in allowed if largest[name] > allowed[name]]
    assert not wrong, "\n".join(wrong)
