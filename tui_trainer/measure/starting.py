"""Measure the time before the first step of a run: with tokens prepared or read from the cache, and with weights copied
into the model or memory-mapped. Each measurement has a process of its own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

import psutil

from tui_trainer.config.load import Request
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.launching.open_run import load_config
from tui_trainer.measure.micro_batches import question_of, request_of
from tui_trainer.measure.turns import Columns, Notify, TimeLimit, Variant, measure_in_turns, table_of, with_spread
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
TOKENIZED_AGAIN, CACHED = "data tokenized again", "tokens from the cache"
READ_THEN_COPIED, READ_IN_PLACE = "weights read, then copied", "weights read in place"
NAMES = (TOKENIZED_AGAIN, CACHED, READ_THEN_COPIED, READ_IN_PLACE)
_FROM_SCRATCH = "this model is trained from scratch, so no weights are read"
_SLOW_WAY = {CACHED: TOKENIZED_AGAIN, READ_IN_PLACE: READ_THEN_COPIED}


def measure_start(
    request: Request, rounds: int, gpu: GpuChoice, seconds: float, notify: Notify, only: Sequence[str] = ()
) -> list[Variant]:
    """Measure each way `rounds` times, the slow way of each pair first. `only` has parts of the names of ways."""
    is_from_scratch = load_config(request, gpu=gpu).config.is_from_scratch
    chosen_names = [name for name in NAMES if not only or any(word in name for word in only)]
    reasons = dict.fromkeys((READ_THEN_COPIED, READ_IN_PLACE), _FROM_SCRATCH) if is_from_scratch else {}
    variants = [Variant(name=name, reason=reasons.get(name, "")) for name in chosen_names]
    with TemporaryDirectory(prefix="bench-") as cache_folder:

        def ask_once(variant: Variant, is_first: bool, left: float) -> dict[str, Any]:
            with TemporaryDirectory(prefix="bench-") as empty_folder:
                data_folder = cache_folder if variant.name == CACHED else empty_folder
                question = question_of(request, gpu) | {"way": variant.name, "place": data_folder}
                if variant.name == CACHED and is_first:
                    # This turn fills the cache. Its figures are not used.
                    ask("time_start", question, timeout_seconds=left)
                return dict(ask("time_start", question, timeout_seconds=left))

        measure_in_turns(variants, ask_once, TimeLimit(seconds), rounds=rounds, notify=notify)
    return variants


def time_start(question: dict[str, Any], _: Report) -> dict[str, Any]:
    """Prepare data or load weights in one way, and return its seconds and bytes. Runs in a worker.

    `question` has config_file, profile, shortcuts, assignments, gpu, way, place (a folder for prepared data)."""
    # Libraries are imported before the clock starts.
    import torch
    import transformers  # noqa: F401

    from tui_trainer.models.loading import load_pretrained
    from tui_trainer.training.recorder import peak_memory_bytes

    loaded = load_config(request_of(question), gpu=question["gpu"])
    config, task = loaded.config, find_task(loaded.config.task.type)
    start_bytes, started_at = psutil.Process().memory_info().rss, perf_counter()
    if question["way"] in (TOKENIZED_AGAIN, CACHED):
        task.prepare(config, loaded.data, Path(question["place"]), None)
    else:
        folder = require_folder(find_model(config.model.model_name_or_path, config.model.revision, head=task.head))
        is_in_place = question["way"] == READ_IN_PLACE
        load_weights = load_pretrained if is_in_place else read_then_copy
        load_weights(folder, config.model, torch.float32, head=task.head)
    seconds = perf_counter() - started_at
    return {"seconds": seconds, "memory_bytes": max(peak_memory_bytes(torch.device("cpu")) - start_bytes, 0)}


def read_then_copy(folder: Path, model: "ModelSection", dtype: "torch.dtype", *, head: Head) -> None:
    """Load a model as PyTorch's tutorials do: create it with random weights, read all files, and copy their weights.

    Raises RuntimeError if the names in the files are not those of the model.
    """
    from safetensors.torch import load_file
    from transformers import AutoConfig

    from tui_trainer.models.loading import new_model

    network = new_model(AutoConfig.from_pretrained(folder, local_files_only=True), model, dtype, head=head)
    tensors = {name: tensor for path in files_of(folder, WEIGHTS_FILE) for name, tensor in load_file(path).items()}
    if not network.state_dict().keys() & tensors.keys():
        raise RuntimeError("the tensor names in the files do not match the model")
    network.load_state_dict(tensors, strict=False)


_COLUMNS: Columns = {
    "before the first step": lambda row: row["name"],
    "ms": lambda row: with_spread(1e3 * row["seconds"], row["seconds_spread"]),
    "memory": lambda row: format_bytes(row["memory_bytes"]),
    "times as fast as the slow way": lambda row: "--" if row["speed_up"] is None else f"{row['speed_up']:.1f}",
}


def figures(variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """Return a row of medians for each way. `speed_up` compares it with the slow way before it: 2 is twice as fast."""
    medians = {variant.name: variant.median("seconds") for variant in variants}
    rows = []
    for variant in variants:
        slow_seconds, seconds = medians.get(_SLOW_WAY.get(variant.name, "")), medians[variant.name]
        rows.append(
            {
                "name": variant.name,
                "reason": variant.reason,
                "turns": len(variant.answers),
                "seconds": seconds,
                "seconds_spread": variant.spread_share("seconds"),
                "memory_bytes": variant.median("memory_bytes"),
                "speed_up": slow_seconds / seconds if slow_seconds and seconds else None,
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return table_of(_COLUMNS, rows)
