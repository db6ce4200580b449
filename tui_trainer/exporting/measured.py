"""Measure a model on held-out rows: the task's loss and scores, the labels, logits, and the token ids of some texts.

`measure` answers a question of `export.py` in a worker, which loads only one model. It writes logits to a file."""

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
from tui_trainer.exporting.serving import serving_facts
from tui_trainer.exporting.trained_model import TrainedModel, load_model, load_tokenizer
from tui_trainer.hardware.storage import prepared_data_folder
from tui_trainer.losses.micro_batch import MicroBatch, micro_batch
from tui_trainer.losses.named_losses import NamedLoss, NamedLossSums
from tui_trainer.models.heads import CAUSAL
from tui_trainer.models.writing import pad_token_id
from tui_trainer.runs.folder import RunFolder
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.worker.questions import Report


def prepared_data(trained: TrainedModel, progress: Progress = lambda *_: None) -> PreparedData:
    """Return the prepared data of a run. Raises InputError if it is gone and the same data cannot be prepared again."""
    if entry := read_entry(prepared_data_folder() / trained.plan.data_key):
        return entry
    if trained.config is not trained.plan.config:
        model = one_line(trained.plan.config.model.model_name_or_path, 200)
        message = f"the prepared data of {trained.run.name} is gone, and preparing it again needs the model {model}"
        command = f"tui-trainer evaluate {shell_word(trained.run.name)} --data FILE"
        hint = f"restore the model, or use `{command}`, which needs only a file with rows"
        raise InputError(f"{message}, which is not on this disk", hint=hint)
    plan, task = trained.plan, trained.task
    data = data_of(trained.config)
    rows_state = compare_rows(data, task.row_settings(trained.config), plan.data_key, plan.data_fingerprint, progress)
    if rows_state == "same":
        return task.prepare(trained.config, data, prepared_data_folder(), progress)
    if rows_state == "other_data":
        raise InputError("the data has changed since this run, so its held-out rows cannot be read again")
    message = "the data of this run was prepared by an older version, and its folder is gone"
    hint = f"`tui-trainer evaluate {shell_word(trained.run.name)} --data FILE` uses the rows of a file instead"
    raise InputError(message, where=str(prepared_data_folder() / plan.data_key), hint=hint)


def layout_of(trained: TrainedModel, model: Any, rows_at_a_time: int) -> RowLayout:
    """Return the layout that batches rows for a model of this run, `rows_at_a_time` rows per pass."""
    pad_id = pad_token_id(load_tokenizer(trained))
    return RowLayout(collate=trained.task.collate(model, pad_id), rows_per_pass=rows_at_a_time)


def score_rows(
    trained: TrainedModel,
    data: PreparedData,
    model: Any,
    rows: Rows,
    parts: Sequence[Sequence[int]],
    layout: RowLayout,
    on_pass: Callable[[MicroBatch, float, int, float], None] = lambda *_: None,
) -> tuple[float, dict[str, float]]:
    """Return the loss in nats per label and the task's scores on the rows of `parts`.

    Rows of one part share passes. After each pass `on_pass` gets the batch, its summed loss, its label count and its
    seconds. Raises InputError if the loss needs a reference model that is not on this disk."""
    objective = trained.task.objective(trained.config, data, model, chunk_tokens=0)
    scorer = trained.task.scorer(trained.config, data, objective)
    observe = scorer.observe if scorer else objective
    device = next(model.parameters()).device
    sums, terms = NamedLossSums.of(objective), dict[str, Tensor]()
    with torch.inference_mode():
        if rows.row_values is None and trained.task.row_pass(trained.config, data, objective):
            rows.row_values = _base_model_values(trained, data, model, rows, parts, layout)
        if isinstance(objective, NamedLoss) and objective.terms:
            term_sums = NamedLossSums.of_terms(objective)
            for batch in _passes(rows, parts, layout):
                term_sums.count([batch])
                term_sums.add(objective.terms_of(batch.to(device)))
            terms = term_sums.means()
        for batch in _passes(rows, parts, layout):
            started_at = perf_counter()
            batch_sums, observed_losses = NamedLossSums.of(objective), observe(replace(batch.to(device), terms=terms))
            for loss_sums in (batch_sums, sums):
                loss_sums.count([batch])
                loss_sums.add(observed_losses)
            loss = float(batch_sums.loss_sum)  # waits for the device, so that the seconds include its work
            on_pass(batch, loss, batch_sums.label_count, perf_counter() - started_at)
    named_means = sums.reported_means()
    scores = scorer.scores().values if scorer else {}
    return float(sums.loss_sum) / sums.label_count, {**named_means, **scores}


def _passes(rows: Rows, parts: Sequence[Sequence[int]], layout: RowLayout) -> Iterator[MicroBatch]:
    """Yield the micro-batches of each part, grouping rows of similar length into one pass."""
    for row_numbers in parts:
        for rows_of_pass in layout.passes([rows.example(index) for index in row_numbers]):
            yield micro_batch(layout.batch(rows_of_pass))


def _base_model_values(
    trained: TrainedModel, data: PreparedData, model: Any, rows: Rows, parts: Sequence[Sequence[int]], layout: RowLayout
) -> NDArray[np.float32]:
    """Return the values that the loss needs from its reference model: fp32 [rows, width]; NaN outside `parts`."""
    folder, reason = trained.reference_model()
    task = trained.task
    if folder is None:
        reason = reason or "training began with random weights that were not saved"
        source = "its reference model" if trained.plan.config.task.reference else "the model before training"
        message = f"the {task.name} loss of {trained.run.name} needs the outputs of {source}"
        hint = "see the run's report for the loss measured in training; `tui-trainer predict` needs no loss"
        raise InputError(f"{message}: {reason}", hint=hint)
    base_model = load_model(trained, folder, None, dtype=model.dtype).to(model.device)
    objective = task.objective(trained.config, data, base_model, chunk_tokens=0)
    row_pass = task.row_pass(trained.config, data, objective)
    assert row_pass is not None, "the trained model has one"
    row_values = np.full((len(rows), row_pass.width), np.nan, dtype=np.float32)
    for row_numbers in parts:
        examples = {id(example): (example, index) for index in row_numbers for example in [rows.example(index)]}
        for batch in layout.passes([example for example, _ in examples.values()]):
            values = row_pass.values(micro_batch(layout.batch(batch)).to(model.device))
            row_values[[examples[id(row)][1] for group in batch for row in group]] = values.float().cpu().numpy()
    return row_values


# Number of rows whose logits are compared, and of rows in one forward pass.
COMPARED_ROWS, ROWS_AT_A_TIME = 50, 8
_TEXT_COUNT, _TEXT_TOKENS = 20, 64


def measure(question: dict[str, Any], _: Report) -> dict[str, Any]:
    """Measure one model in a worker.

    `question` has `run`; `folder` and `format` of the export (both empty: the trained model); `rows`, how many rows to
    measure on; `logits`, the file to write; `texts`, the texts to tokenize (None: they are chosen from the rows)."""
    trained = TrainedModel.of(RunFolder.open(Path(question["run"])))
    folder = Path(question["folder"])
    data = prepared_data(trained)
    export_format = find_format(question["format"]) if question["format"] else None
    tokenizer = export_format.tokenizer(trained, folder) if export_format else load_tokenizer(trained)
    model = export_format.load(trained, folder) if export_format else trained.load(dtype=trained.compared_dtype)
    rows = Rows(data.eval_path or data.train_path)
    texts: list[list[str]] | None = question["texts"]
    measurements = _measure_on_rows(trained, data, model, rows, question)
    if texts is None:
        row_starts = (rows.row(index)[:_TEXT_TOKENS] for index in evenly_spaced(len(rows), _TEXT_COUNT))
        start_texts = [str(tokenizer.decode(start.tolist(), skip_special_tokens=True)) for start in row_starts]
        texts = _compared_texts(trained, start_texts, tokenizer)
    truncates, is_trained_chat = trained.head != CAUSAL, trained.task.holds_conversations and export_format is None
    return {
        **measurements,
        "serving": serving_facts(trained, model, tokenizer) if is_trained_chat else None,
        "labels": list((model.config.id2label or {}).values()) if trained.head.endswith("classification") else [],
        "texts": texts,
        "token_ids": [_token_ids(tokenizer, pair, truncates=truncates) for pair in texts] if tokenizer else None,
    }


# Texts whose token ids depend on the details of a tokenizer. None has characters that a Unicode normalization would
# change, as llama.cpp normalizes nothing.
ODD_TEXTS = (
    "", " ", "a", " a", "a ", "  two  spaces   three    four", "tab\there\t\tand\t\t\tthere",
    "one\ntwo\n\nthree\n\n\n", "\r\nwindows\r\nlines\r\n", "  \n  mixed \t\n blanks \n\n ",
    "no\xa0break and\u200bzero width", "it's, I'LL, we'Ve, 'tis", "don\u2019t \u201cquote\u201d \u2026",
    "1 12 123 1234 12345 1234567890", "3.14 -1e-10 0x1F 50% $9.99", "x=1;y=[2,3];z={'a':4}",
    "def f(x):\n    return x ** 2  # note\n", "<b>bold</b> &amp; <br/>", "https://example.org/a?b=c&d=e#f",
    "me@example.org", "Z\xfcrich na\xefve \xc5ngstr\xf6m", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u3053\u3093\u306b\u3061\u306f", "\uc548\ub155\ud558\uc138\uc694",
    "\u0645\u0631\u062d\u0628\u0627", "\U0001f600\U0001f680",
    "\U0001f469\u200d\U0001f4bb \U0001f1e8\U0001f1ed \U0001f44d\U0001f3fd", "!!! ??? ... --- === ~~~", "\x00\x01\x7f",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "CamelCase snake_case kebab-case SHOUT",
)  # fmt: skip
_MOST_ADDED_TOKENS = 50


def _compared_texts(trained: TrainedModel, texts: Sequence[str], tokenizer: Any) -> list[list[str]]:
    """Return lists of one text, or of a pair, whose token ids are compared.

    For a language model they include odd texts and texts with its added tokens. For a model that truncates rows they
    include pairs or joined texts, and texts longer than its longest row."""
    if trained.head == CAUSAL:
        added_tokens = [] if tokenizer.split_special_tokens else list(tokenizer.get_added_vocab())[-_MOST_ADDED_TOKENS:]
        return [[text] for text in (*texts, *ODD_TEXTS, *(f"x{token}y {token} z" for token in added_tokens))]
    is_pair = trained.head == "question_answering" or bool(trained.config.data.text_pair_column)
    pair_texts = [[texts[0], text] if is_pair else [f"{texts[0]} {text}"] for text in texts]
    # Each text has at least one token.
    words = [text for text in texts if text.strip()] or ["a"]
    long = " ".join(words * (trained.config.data.max_length // len(words) + 1))
    return [*([text] for text in texts), *pair_texts, [long, *[texts[0]] * is_pair], [texts[0], *[long] * is_pair]]


def _token_ids(tokenizer: Any, texts: Sequence[str], *, truncates: bool) -> dict[str, list[int]]:
    """Return the token ids (and segments) of one text or a pair, from one call of the tokenizer as users make it."""
    encoding, names = tokenizer(*texts, truncation=truncates), ("input_ids", *[SEGMENTS] * truncates)
    return {name: list(encoding[name]) for name in names if name in encoding}


def _measure_on_rows(
    trained: TrainedModel, data: PreparedData, model: Any, rows: Rows, question: dict[str, Any]
) -> dict[str, Any]:
    chosen = evenly_spaced(len(rows), question["rows"])
    pass_seconds: list[float] = []
    pass_losses: list[tuple[float, int]] = []
    logits: list[Any] = []

    def add_pass(batch: MicroBatch, loss: float, labels: int, seconds: float) -> None:
        pass_seconds.append(seconds)
        pass_losses.append((loss, labels))
        if sum(map(len, logits)) < COMPARED_ROWS * 64:
            logits.append(trained.task.compared_logits(model, batch).numpy())

    loss, scores = score_rows(trained, data, model, rows, [chosen], layout_of(trained, model, ROWS_AT_A_TIME), add_pass)
    np.save(question["logits"], np.concatenate(logits))
    run_rows = list(evenly_spaced(len(rows), trained.plan.eval_rows.value))
    loss_error = 0.0 if run_rows == list(chosen) else _standard_error(pass_losses, len(chosen) / max(len(run_rows), 1))
    row_seconds = sum(pass_seconds) / len(chosen)
    return dict(rows=len(chosen), loss=loss, loss_error=loss_error, scores=scores, seconds_per_row=row_seconds)


def _standard_error(passes: list[tuple[float, int]], ratio: float) -> float:
    """Return the standard error of the difference between the mean losses of these passes and of other rows.

    `passes` has (summed loss, label count) of each pass. `ratio` is the number of these rows divided by the others."""
    labels = sum(count for _, count in passes)
    mean = sum(loss for loss, _ in passes) / labels
    squared_deviations = sum((loss - mean * count) ** 2 for loss, count in passes)
    return math.sqrt(squared_deviations * len(passes) / max(len(passes) - 1, 1) * (1 + ratio)) / labels
