"""What a run would learn from, before it begins: the first rows of its own batches, and numbers about all rows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tui_trainer.config.load import LoadedConfig
from tui_trainer.config.sections import Config
from tui_trainer.data.batching.layout import RowLayout
from tui_trainer.data.batching.pack import PaddingShares, padding_shares
from tui_trainer.data.batching.row_order import RowOrder
from tui_trainer.data.columns.labels import MULTI
from tui_trainer.data.preparing.cache import Counts, PreparedData
from tui_trainer.data.preparing.row_notes import BAD_ROWS, CLASS_ROWS, cut_rows
from tui_trainer.data.preparing.token_rows import LABELS, Rows
from tui_trainer.data.previewing.preview import Lengths, Sample, names_in, samples
from tui_trainer.data.progress import Progress
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.places import prepared_data_folder
from tui_trainer.hardware.probe import probe, with_memory_now
from tui_trainer.launching.fitted_presets import fitted_task_named
from tui_trainer.models.loading import config_only
from tui_trainer.models.writing import pad_token_id
from tui_trainer.planning import plan as planning
from tui_trainer.planning.assemble import Decisions
from tui_trainer.planning.conflicts import setting_problems
from tui_trainer.planning.packing import longest_row
from tui_trainer.tasks import find_task
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.tasks.parts.task import Task

Choice = Literal["padded", "grouped", "packed"]
Learns = Literal["tokens", "labels of rows", "answers"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """`samples` are rows of the batches from step 1 on. `padding` is None where rows are cut from one stream of text.

    `choice` is how the plan lays rows out, `choice_reason` why. `dedup`: repeats and leaks were left out.
    """

    task: str
    source: str
    max_length: int
    samples: tuple[Sample, ...]
    counts: Counts
    bad_rows: tuple[Problem, ...]
    class_rows: Mapping[str, int]
    notes: tuple[str, ...]
    lengths: Lengths
    padding: PaddingShares | None
    choice: Choice
    choice_reason: str
    dedup: bool
    learns: Learns

    @property
    def rows_left_out(self) -> int:
        """Rows of a table, or documents, that no step learns from and no evaluation reads."""
        counts = self.counts
        repeats = counts.repeated_rows + counts.leaked_rows if self.dedup else 0
        return counts.bad_rows + counts.untrained_rows + counts.short_documents + repeats


def make_preview(loaded: LoadedConfig, count: int, progress: Progress, *, gpu: GpuChoice = None) -> Preview:
    """`count` rows of the batches. Prepares the data where that was not done yet.

    Raises InputError for what a run would be refused for, but not for memory that does not suffice.
    """
    if problems := setting_problems(loaded):
        raise ConfigError(problems)
    config = loaded.config
    task = find_task(config.task.type)
    with fitted_task_named(loaded):
        data = task.prepare(config, prepared_data_folder(), progress)
    facts = task.facts(config, data)
    made = planning.decide(loaded, with_memory_now(probe()), facts, gpu)
    rows = Rows(data.train_path)
    order = RowOrder(
        rows.lengths,
        effective_batch=made.cut.effective,
        seed=config.training.seed,
        group_by_length=config.data.group_by_length,
    )
    tokenizer = task.load_tokenizer(config, data)
    shown = samples(
        rows,
        order,
        _layout(task, config, data, facts, made, tokenizer),
        count,
        tokenizer=tokenizer,
        names=names_in(data.details),
        cut=cut_rows(data.folder, len(rows)),
        progress=progress,
    )
    documents = [document for sample in shown for document in sample.documents]
    learns: Learns = "answers" if any(document.answer for document in documents) else "tokens"
    bad = tuple(Problem(**one) for one in data.details.get(BAD_ROWS, ()))
    return Preview(
        task=task.name,
        source=data.source,
        max_length=data.max_length,
        samples=tuple(shown),
        counts=data.counts,
        bad_rows=bad,
        class_rows=_class_rows(data, rows),
        # Bad rows stand in a list of their own.
        notes=tuple(note for note in data.all_notes if not (bad and str(bad[0]) in note)),
        lengths=Lengths.of(rows.lengths),
        padding=_padding(loaded, task, data, facts, made, rows),
        choice="packed" if made.packing.value else "grouped" if config.data.group_by_length else "padded",
        choice_reason=made.packing.reason if task.packs else "",
        dedup=config.data.dedup,
        learns="labels of rows" if any(document.label for document in documents) else learns,
    )


def _class_rows(data: PreparedData, rows: Rows) -> dict[str, int]:
    """How many training rows have each class: with several labels a row, a row counts for each of them."""
    if data.details.get("problem_type") != MULTI:
        return dict(data.details.get(CLASS_ROWS, {}))
    having = rows.values(LABELS).reshape(len(rows), -1).sum(axis=0)
    return dict(zip(names_in(data.details), having.tolist(), strict=True))


def _layout(
    task: Task, config: Config, data: PreparedData, facts: DataFacts, made: Decisions, tokenizer: Any
) -> RowLayout:
    """As a run makes it (`training/components.py`), without the model."""
    model = config_only(
        task.model_config(config, facts.vocabulary, facts.classes),
        tokenizer,
        is_new=config.model.init == "scratch" or not config.model.model_name_or_path,
        problem_type=str(data.details.get("problem_type", "")),
    )
    widest = longest_row(config, facts, made.packing.value)
    return RowLayout(
        collate=task.collate_in_run(config, model, pad_token_id(tokenizer), widest),
        collate_packed=task.collate_packed(pad_token_id(tokenizer)),
        rows=made.cut.micro,
        packed_width=widest if made.packing.value else 0,
        fixed_width=widest if config.training.torch_compile else 0,
    )


def _padding(
    loaded: LoadedConfig, task: Task, data: PreparedData, facts: DataFacts, made: Decisions, rows: Rows
) -> PaddingShares | None:
    if not data.lengths:
        return None
    unpacked = made
    if made.packing.value:
        apart = loaded.config.data.model_copy(update={"packing": False})
        alone = replace(loaded, config=loaded.config.model_copy(update={"data": apart}))
        chosen: GpuChoice = made.target.gpu.index if made.target.gpu else "none"
        unpacked = planning.decide(alone, with_memory_now(probe()), facts, chosen)
    # Where a model learns the next token, the last token of a row is no input.
    inputs = rows.lengths - 1 if task.packs else rows.lengths
    return padding_shares(
        np.maximum(inputs, 1),
        capacity=data.max_length,
        documents=min(made.cut.effective, len(rows)),
        micro_batch=unpacked.cut.micro,
        packs=task.packs,
        width_step=task.width_step(made.shape.model_type),
    )
