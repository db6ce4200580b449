"""A model on held-out rows, in a worker, which has loaded nothing else: the task's own loss and scores, the labels, and
how it reads some texts. Logits go to a file.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from tui_trainer.data.preparing.cache import PreparedData
from tui_trainer.data.preparing.token_rows import Rows, evenly_spaced
from tui_trainer.exporting.contract import find_format, saved_tokenizer
from tui_trainer.exporting.held_out import batches, layout_of, prepared_data, scored
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.runs.folder import RunFolder
from tui_trainer.worker.questions import Report

# Rows whose logits are compared, and in one forward pass.
COMPARED_ROWS, ROWS_AT_A_TIME = 50, 8
_TEXTS, _TEXT_TOKENS = 20, 64


def measure(question: dict[str, Any], _: Report) -> dict[str, Any]:
    """`question` has run, format and folder to load it from (no format: as it was trained), rows, logits (a file to
    write), texts."""
    trained = TrainedModel.of(RunFolder.open(Path(question["run"])))
    folder = Path(question["folder"])
    data = prepared_data(trained)
    own = find_format(question["format"]) if question["format"] else None
    tokenizer = own.tokenizer(trained, folder) if own else saved_tokenizer(trained, folder)
    model = own.load(trained, folder) if own else trained.load(dtype=trained.compared_dtype)
    rows, texts = Rows(data.eval_path or data.train_path), question["texts"]
    found = _on_rows(trained, data, model, rows, question)
    if texts is None:
        few = (rows.row(at)[:_TEXT_TOKENS] for at in evenly_spaced(len(rows), _TEXTS))
        texts = [tokenizer.decode(row.tolist(), skip_special_tokens=True) for row in few]
    return {
        **found,
        "labels": list((model.config.id2label or {}).values()) if trained.head.endswith("classification") else [],
        "texts": texts,
        "token_ids": [tokenizer(text)["input_ids"] for text in texts] if tokenizer else None,
    }


def _on_rows(
    trained: TrainedModel, data: PreparedData, model: Any, rows: Rows, question: dict[str, Any]
) -> dict[str, Any]:
    chosen = evenly_spaced(len(rows), question["rows"])
    passes: list[float] = []
    parts: list[tuple[float, int]] = []
    kept: list[Any] = []

    def keep(batch: MicroBatch, loss: float, seconds: float) -> None:
        passes.append(seconds)
        parts.append((loss, batch.label_count))
        if sum(map(len, kept)) < COMPARED_ROWS * 64:
            # float32 [N, C]: of the places that have a label, or of whole rows.
            logits = model(**batch.inputs).logits.float()
            kept.append((logits.flatten(0, 1)[batch.places] if len(batch.places) else logits).numpy())

    loss, scores = scored(trained, data, model, batches(rows, chosen, layout_of(trained, model, ROWS_AT_A_TIME)), keep)
    np.save(question["logits"], np.concatenate(kept))
    run_rows = list(evenly_spaced(len(rows), trained.plan.eval_rows.value))
    error = 0.0 if run_rows == list(chosen) else _standard_error(parts, len(chosen) / max(len(run_rows), 1))
    return {
        "rows": len(chosen),
        "loss": loss,
        "loss_error": error,
        "scores": scores,
        "seconds_per_row": sum(passes) / len(chosen),
    }


def _standard_error(parts: list[tuple[float, int]], ratio: float) -> float:
    """Of the difference between the mean loss of these passes (sum of losses, labels) and that of other rows of the
    same data, of which these are `ratio` as many."""
    labels, mean = sum(count for _, count in parts), sum(loss for loss, _ in parts) / sum(count for _, count in parts)
    spread = sum((loss - mean * count) ** 2 for loss, count in parts)
    return math.sqrt(spread * len(parts) / max(len(parts) - 1, 1) * (1 + ratio)) / labels
