"""A model on held-out rows, in a worker, which has loaded nothing else: the task's own loss and scores, the labels, and
how it reads some texts. Logits go to a file.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tui_trainer.config.paths import data_of
from tui_trainer.data.batching.layout import RowLayout
from tui_trainer.data.preparing.cache import PreparedData, compare_rows, read_entry
from tui_trainer.data.preparing.token_rows import SEGMENTS, Rows, evenly_spaced
from tui_trainer.data.progress import Progress
from tui_trainer.errors import InputError
from tui_trainer.exporting.contract import find_format
from tui_trainer.exporting.trained_model import TrainedModel, load_model, load_tokenizer
from tui_trainer.hardware.storage import prepared_data_folder
from tui_trainer.losses.micro_batch import MicroBatch, micro_batch
from tui_trainer.losses.several_parts import NamedLoss, Sums
from tui_trainer.models.heads import CAUSAL
from tui_trainer.models.writing import pad_token_id
from tui_trainer.runs.folder import RunFolder
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.worker.questions import Report

# The rows that a trained model is measured on, as its run measured on them.


def prepared_data(trained: TrainedModel, progress: Progress = lambda *_: None) -> PreparedData:
    """The data of its run. Raises InputError where it is gone, and cannot be prepared again as it was."""
    if found := read_entry(prepared_data_folder() / trained.plan.data_key):
        return found
    if trained.config is not trained.plan.config:
        name = one_line(trained.plan.config.model.model_name_or_path, 200)
        message = f"the prepared data of {trained.run.name} is gone, and preparing it again needs the model {name}"
        command = f"tui-trainer evaluate {shell_word(trained.run.name)} --data FILE"
        hint = f"restore the model, or use `{command}`, which needs only a file with rows"
        raise InputError(f"{message}, which is not on this disk", hint=hint)
    plan, task = trained.plan, trained.task
    data = data_of(trained.config)
    now = compare_rows(data, task.cut(trained.config), plan.data_key, plan.data_fingerprint, progress)
    if now == "the same":
        return task.prepare(trained.config, data, prepared_data_folder(), progress)
    if now == "of other data":
        raise InputError("the data has changed since this run, so its held-out rows cannot be read again")
    message = "the data of this run was prepared by an older version, and its folder is gone"
    hint = f"`tui-trainer evaluate {shell_word(trained.run.name)} --data FILE` uses the rows of a file instead"
    raise InputError(message, where=str(prepared_data_folder() / plan.data_key), hint=hint)


def layout_of(trained: TrainedModel, model: Any, rows_at_a_time: int) -> RowLayout:
    """How rows lie in the passes of a model of this run."""
    pad_id = pad_token_id(load_tokenizer(trained))
    return RowLayout(collate=trained.task.collate(model, pad_id), rows=rows_at_a_time)


def scored(
    trained: TrainedModel,
    data: PreparedData,
    model: Any,
    rows: Rows,
    parts: Sequence[Sequence[int]],
    layout: RowLayout,
    seen: Callable[[MicroBatch, float, int, float], None] = lambda batch, loss, labels, seconds: None,
) -> tuple[float, dict[str, float]]:
    """(loss in nats a label, the task's scores) of some rows; those of one part share passes. `seen` gets each batch
    after its pass, the sum of its losses, of how many labels, and the seconds that it took.

    Raises InputError where the loss needs what the model gave before training, and that model is not on this disk.
    """
    objective = trained.task.objective(trained.config, data, model, chunk_tokens=0)
    scorer = trained.task.scorer(trained.config, data, objective)
    observe = scorer.observe if scorer else objective
    device = next(model.parameters()).device
    sums, terms = Sums.of(objective), dict[str, Tensor]()
    with torch.inference_mode():
        if rows.row_values is None and trained.task.row_pass(trained.config, data, objective):
            rows.row_values = _values_before(trained, data, model, rows, parts, layout)
        if isinstance(objective, NamedLoss) and objective.terms:
            found_terms = Sums.of_terms(objective)
            for batch in _passes(rows, parts, layout):
                found_terms.count([batch])
                found_terms.add(objective.terms_of(batch.to(device)))
            terms = found_terms.means()
        for batch in _passes(rows, parts, layout):
            started = perf_counter()
            of_batch, found = Sums.of(objective), observe(replace(batch.to(device), terms=terms))
            for one in (of_batch, sums):
                one.count([batch])
                one.add(found)
            loss = float(of_batch.loss_sum)  # waits for the device, which is part of the seconds
            seen(batch, loss, of_batch.label_count, perf_counter() - started)
    named = {name: float(mean) for name, mean in sums.means().items()} if sums.has_names else {}
    scores = scorer.scores().values if scorer else {}
    return float(sums.loss_sum) / sums.label_count, {**named, **scores}


def _passes(rows: Rows, parts: Sequence[Sequence[int]], layout: RowLayout) -> Iterator[MicroBatch]:
    """Yield the rows of each part, grouping rows of similar length into one pass."""
    for chosen in parts:
        for rows_of_pass in layout.passes([rows.example(index) for index in chosen]):
            yield micro_batch(layout.batch(rows_of_pass))


def _values_before(
    trained: TrainedModel, data: PreparedData, model: Any, rows: Rows, parts: Sequence[Sequence[int]], layout: RowLayout
) -> NDArray[np.float32]:
    """fp32 [rows, width]: what the model that the run began with says of the chosen rows; NaN for others."""
    folder, reason = trained.base_model()
    task = trained.task
    if folder is None:
        reason = reason or "training began with random weights that were not saved"
        message = f"the {task.name} loss of {trained.run.name} needs the outputs of the model before training"
        hint = "see the run's report for the loss measured in training; `tui-trainer predict` needs no loss"
        raise InputError(f"{message}: {reason}", hint=hint)
    before = load_model(trained, folder, None, dtype=model.dtype).to(model.device)
    objective = task.objective(trained.config, data, before, chunk_tokens=0)
    row_pass = task.row_pass(trained.config, data, objective)
    assert row_pass is not None, "it was there for the trained model"
    found = np.full((len(rows), row_pass.width), np.nan, dtype=np.float32)
    for chosen in parts:
        examples = {id(example): (example, index) for index in chosen for example in [rows.example(index)]}
        for passed in layout.passes([example for example, _ in examples.values()]):
            values = row_pass.values(micro_batch(layout.batch(passed)).to(model.device))
            found[[examples[id(row)][1] for together in passed for row in together]] = values.float().cpu().numpy()
    return found


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
    tokenizer = own.tokenizer(trained, folder) if own else load_tokenizer(trained)
    model = own.load(trained, folder) if own else trained.load(dtype=trained.compared_dtype)
    rows = Rows(data.eval_path or data.train_path)
    texts: list[list[str]] | None = question["texts"]
    found = _on_rows(trained, data, model, rows, question)
    if texts is None:
        few = (rows.row(at)[:_TEXT_TOKENS] for at in evenly_spaced(len(rows), _TEXTS))
        texts = _compared_texts(trained, [str(tokenizer.decode(row.tolist(), skip_special_tokens=True)) for row in few])
    return {
        **found,
        "labels": list((model.config.id2label or {}).values()) if trained.head.endswith("classification") else [],
        "texts": texts,
        "token_ids": [_read(tokenizer, some, cuts=trained.head != CAUSAL) for some in texts] if tokenizer else None,
    }


def _compared_texts(trained: TrainedModel, texts: Sequence[str]) -> list[list[str]]:
    """Some texts; of a model whose rows are cut also two together, as a pair where it was trained on pairs, and some
    that are longer than the longest row."""
    if trained.head == CAUSAL:
        return [[text] for text in texts]
    is_pair = trained.head == "question_answering" or bool(trained.config.data.text_pair_column)
    both = [[texts[0], text] if is_pair else [f"{texts[0]} {text}"] for text in texts]
    # Each text has a token at least.
    some = [text for text in texts if text.strip()] or ["a"]
    long = " ".join(some * (trained.config.data.max_length // len(some) + 1))
    return [*([text] for text in texts), *both, [long, *[texts[0]] * is_pair], [texts[0], *[long] * is_pair]]


def _read(tokenizer: Any, texts: Sequence[str], *, cuts: bool) -> dict[str, list[int]]:
    """As somebody else reads a row: in one call, which cuts it where the tokenizer says."""
    made, names = tokenizer(*texts, truncation=cuts), ("input_ids", *[SEGMENTS] * cuts)
    return {name: list(made[name]) for name in names if name in made}


def _on_rows(
    trained: TrainedModel, data: PreparedData, model: Any, rows: Rows, question: dict[str, Any]
) -> dict[str, Any]:
    chosen = evenly_spaced(len(rows), question["rows"])
    passes: list[float] = []
    parts: list[tuple[float, int]] = []
    kept: list[Any] = []

    def keep(batch: MicroBatch, loss: float, labels: int, seconds: float) -> None:
        passes.append(seconds)
        parts.append((loss, labels))
        if sum(map(len, kept)) < COMPARED_ROWS * 64:
            kept.append(trained.task.compared_logits(model, batch).numpy())

    loss, scores = scored(trained, data, model, rows, [chosen], layout_of(trained, model, ROWS_AT_A_TIME), keep)
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
