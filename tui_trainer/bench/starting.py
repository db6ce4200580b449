"""What a run needs before its first step, one way and the other: tokens made anew and from the cache, weights that are
read to where they stay and weights that are read beside a model. In turns, each in a process of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

import psutil

from tui_trainer.bench import training
from tui_trainer.bench.rounds import Columns, Rounds, Variant, measure_in_turns, table_of, turns_words, with_spread
from tui_trainer.config.load import Request
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.launching.micro_batches import question_of, request_of
from tui_trainer.launching.open_run import load_config
from tui_trainer.lines.plan_and_events import table_lines
from tui_trainer.models.facts import find_model, require_folder
from tui_trainer.models.files.shards import files_of
from tui_trainer.models.heads import Head
from tui_trainer.tasks import find_task
from tui_trainer.units import format_bytes
from tui_trainer.worker.asking import ask
from tui_trainer.worker.questions import Report

if TYPE_CHECKING:
    import torch

    from tui_trainer.config.sections import ModelSection

WEIGHTS_FILE = "model.safetensors"
ANEW, CACHED = "tokens made anew", "tokens from the cache"
BESIDE, IN_PLACE = "weights read beside the model", "weights read in place"
NAMES = (ANEW, CACHED, BESIDE, IN_PLACE)
_FROM_SCRATCH = "this model is trained from scratch: no weights are read"


def measure_start(
    request: Request, rounds: int, gpu: GpuChoice, seconds: float, told: Callable[[str], None], only: Sequence[str] = ()
) -> Rounds:
    """Each of them as often as `rounds`, the slow way first; `only` names parts of their names."""
    config = load_config(request, gpu=gpu).config
    question = question_of(request, gpu)
    reason = _FROM_SCRATCH if config.is_from_scratch else ""
    variants = [Variant(name=name, question={**question, "way": name}) for name in (ANEW, CACHED)]
    variants += [Variant(name=name, question={**question, "way": name}, reason=reason) for name in (BESIDE, IN_PLACE)]
    chosen = [one for one in variants if not only or any(word in one.name for word in only)]
    with TemporaryDirectory(prefix="bench-") as kept:

        def once(variant: Variant, is_first: bool, left: float) -> dict[str, Any]:
            # Those from the cache find what the first of them, whose figures go, has left.
            with TemporaryDirectory(prefix="bench-") as empty:
                asked = {**variant.question, "place": kept if variant.name == CACHED else empty}
                if variant.name == CACHED and is_first:
                    ask("time_start", asked, timeout_seconds=left)
                found: dict[str, Any] = ask("time_start", asked, timeout_seconds=left)
            return found

        return measure_in_turns(chosen, once, rounds=rounds, seconds=seconds, told=told)


def time_start(question: dict[str, Any], _: Report) -> dict[str, Any]:
    """Seconds of one of the ways, and the bytes that the process has taken for it at the most; in a worker.

    `question` has config_file, profile, shortcuts, assignments, gpu, way, place (a folder for prepared data).
    """
    # Libraries are loaded before the clock runs.
    import torch
    import transformers  # noqa: F401

    from tui_trainer.models.loading import load_pretrained
    from tui_trainer.training.recorder import peak_memory_bytes

    loaded = load_config(request_of(question), gpu=question["gpu"])
    config, task = loaded.config, find_task(loaded.config.task.type)
    before, started = psutil.Process().memory_info().rss, perf_counter()
    if question["way"] in (ANEW, CACHED):
        task.prepare(config, loaded.data, Path(question["place"]), None)
    else:
        folder = require_folder(find_model(config.model.model_name_or_path, config.model.revision, head=task.head))
        in_place = question["way"] == IN_PLACE
        read = load_pretrained if in_place else read_beside
        read(folder, config.model, torch.float32, head=task.head)
    seconds = perf_counter() - started
    return {"seconds": seconds, "memory_bytes": max(peak_memory_bytes(torch.device("cpu")) - before, 0)}


def read_beside(folder: Path, model: "ModelSection", dtype: "torch.dtype", *, head: Head) -> None:
    """As PyTorch's own tutorials load a model: one with random weights is made, all files are read into memory, and
    copied into it. Raises RuntimeError where the names in the files are not those of the model."""
    from safetensors.torch import load_file
    from transformers import AutoConfig

    from tui_trainer.models.loading import new_model

    made = new_model(AutoConfig.from_pretrained(folder, local_files_only=True), model, dtype, head=head)
    stored = {name: one for path in files_of(folder, WEIGHTS_FILE) for name, one in load_file(path).items()}
    if not made.state_dict().keys() & stored.keys():
        raise RuntimeError("the tensor names in the files do not match the model")
    made.load_state_dict(stored, strict=False)


_COLUMNS: Columns = {
    "before the first step": lambda row: row["name"],
    "ms": lambda row: with_spread(1e3 * row["seconds"], row["seconds_spread"]),
    "memory": lambda row: format_bytes(row["memory_bytes"]),
    "times as fast": lambda row: "--" if row["speed_up"] is None else f"{row['speed_up']:.1f}",
}


def figures(bench: Rounds) -> list[dict[str, Any]]:
    """A row for each way: medians over its turns, and how many times as fast it is as the slow way above it."""
    rows = []
    slow = {CACHED: ANEW, IN_PLACE: BESIDE}
    by_name = {one.variant.name: one for one in bench.measured}
    for name, one in by_name.items():
        other = by_name.get(slow.get(name, ""))
        before, now = other.median("seconds") if other else None, one.median("seconds")
        rows.append(
            {
                "name": name,
                "reason": one.reason,
                "turns": len(one.answers),
                "seconds": now,
                "seconds_spread": one.spread("seconds"),
                "memory_bytes": one.median("memory_bytes"),
                "speed_up": before / now if before and now else None,
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return table_of(_COLUMNS, rows)


_SHORT = "these losses come from short runs and predict little: --whole trains the full run for each line"


def trial_lines(found: Mapping[str, Any], width: int) -> list[str]:
    """The tables of `bench train` and what their columns are; `found` as it prints it with --json. None without
    figures."""
    rows = found["variants"]
    if not rows[0]["turns"]:
        return []
    taken = "all steps of the run" if found["whole"] else f"{found['steps']} steps per round"
    cells = training.table(rows)
    lines = [
        f"{taken}, {turns_words(found['rounds'])}",
        f"baseline: {found['batch']} padded rows in one micro-batch, fp32, plain attention, batches made between steps",
        *table_lines(cells, width, right=cells[0][1:]),
        f"speed-up: ratio of tokens/s; loss: held-out loss after {'the run' if found['whole'] else 'these steps'}; "
        "+: together with all + lines above it",
        *([] if found["whole"] else [_SHORT]),
        "whole run: time of all steps of the requested run at the measured rate",
        *found["doubts"],
    ]
    if any(row["turns"] for row in found["starts"]):
        starts = table(found["starts"])
        lines += ["", *table_lines(starts, width, right=starts[0][1:])]
    return lines


def reasons(found: Mapping[str, Any]) -> list[str]:
    """What was not measured, and why."""
    return [f"{row['name']}: {row['reason']}" for row in (*found["variants"], *found["starts"]) if row["reason"]]
