"""The rows that a trained model is measured on, as its run measured on them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any

import torch

from tui_trainer.data.batching.layout import RowLayout
from tui_trainer.data.preparing.cache import PreparedData, read_entry
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.data.progress import Progress
from tui_trainer.errors import InputError
from tui_trainer.exporting.trained_model import TrainedModel, load_tokenizer
from tui_trainer.hardware.places import prepared_data_folder
from tui_trainer.losses.micro_batch import MicroBatch, micro_batch
from tui_trainer.losses.named import Sums
from tui_trainer.models.writing import pad_token_id
from tui_trainer.safe_text import one_line


def prepared_data(trained: TrainedModel, progress: Progress = lambda *_: None) -> PreparedData:
    """The data of its run. Raises InputError where it is gone, and cannot be prepared again as it was."""
    if found := read_entry(prepared_data_folder() / trained.plan.data_key):
        return found
    if trained.config is not trained.plan.config:
        name = one_line(trained.plan.config.model.model_name_or_path, 200)
        message = f"the prepared data of {trained.run.name} is gone, and its rows were made with the tokens of {name}"
        hint = (
            f"put the model back; `tui-trainer evaluate {trained.run.name} --data FILE` needs only the rows of a file"
        )
        raise InputError(f"{message}, which is not on this disk", hint=hint)
    plan, task = trained.plan, trained.task
    now = task.rows_now(trained.config, plan.data_key, plan.data_fingerprint, progress)
    if now == "the same":
        return task.prepare(trained.config, prepared_data_folder(), progress)
    if now == "of other data":
        raise InputError("the data changed since this run, so its held-out rows cannot be read again")
    message = "the rows of this run were prepared by an older version, and their folder is gone"
    hint = f"`tui-trainer evaluate {trained.run.name} --data FILE` measures on the rows of a file"
    raise InputError(message, where=str(prepared_data_folder() / plan.data_key), hint=hint)


def layout_of(trained: TrainedModel, model: Any, rows_at_a_time: int) -> RowLayout:
    """How rows lie in the passes of a model of this run."""
    pad_id = pad_token_id(load_tokenizer(trained))
    return RowLayout(collate=trained.task.collate(model, pad_id), rows=rows_at_a_time)


def batches(rows: Rows, chosen: Sequence[int], layout: RowLayout) -> Iterator[MicroBatch]:
    """The chosen rows, those of similar length in one pass."""
    for rows_of_pass in layout.passes([rows.example(index) for index in chosen]):
        yield micro_batch(layout.batch(rows_of_pass))


def scored(
    trained: TrainedModel,
    data: PreparedData,
    model: Any,
    passes: Iterable[MicroBatch],
    seen: Callable[[MicroBatch, float, float], None] = lambda batch, loss, seconds: None,
) -> tuple[float, dict[str, float]]:
    """(loss in nats a label, the task's scores) of some rows. `seen` gets each batch after its pass, the sum of its
    losses, and the seconds that it took."""
    objective = trained.task.objective(trained.config, data, model, chunk_tokens=0)
    scorer = trained.task.scorer(trained.config, data, objective)
    observe = scorer.observe if scorer else objective
    device = next(model.parameters()).device
    sums = Sums.of(objective)
    with torch.inference_mode():
        for batch in passes:
            started = perf_counter()
            of_batch, found = Sums.of(objective), observe(batch.to(device))
            for one in (of_batch, sums):
                one.count([batch])
                one.add(found)
            seen(batch, float(of_batch.loss_sum), perf_counter() - started)
    return float(sums.loss_sum) / sums.label_count, dict(scorer.scores().values) if scorer else {}
