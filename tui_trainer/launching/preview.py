"""Preview of the data: the rows of a run's first batches, and figures about all rows, as lines and as JSON."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, Literal

import numpy as np
from rich.cells import cell_len

from tui_trainer.config.load import LoadedConfig, ResolvedLoaded
from tui_trainer.data.batching.layout import RowLayout
from tui_trainer.data.batching.pack import PaddingShares, padding_shares
from tui_trainer.data.batching.row_order import RowOrder
from tui_trainer.data.columns.labels import MULTI_LABEL
from tui_trainer.data.preparing.cache import Counts, PreparedData
from tui_trainer.data.preparing.prepare import BAD_ROWS_KEY, CLASS_ROWS_KEY, read_cut_rows
from tui_trainer.data.preparing.token_rows import DOCUMENT_LENGTHS, LABELS, Rows
from tui_trainer.data.preview import Lengths, Piece, ShownDocument, ShownSample, names_in, preview_rows
from tui_trainer.data.progress import Progress
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.probe import probe, with_memory_now
from tui_trainer.hardware.storage import prepared_data_folder
from tui_trainer.launching.fitted_presets import fitted_task_named
from tui_trainer.models.loading import config_only
from tui_trainer.models.writing import pad_token_id
from tui_trainer.planning import plan as planning
from tui_trainer.planning.basis import with_settings
from tui_trainer.planning.batch_cut import longest_row
from tui_trainer.planning.conflicts import setting_problems
from tui_trainer.planning.effective_batch import with_rows_of_step
from tui_trainer.tasks import find_task
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.tasks.parts.task import Task
from tui_trainer.terminal.safe_text import one_line, show_control_characters
from tui_trainer.units import quantity

Choice = Literal["padded", "grouped", "packed"]
LossScope = Literal["tokens", "labels of rows", "answers"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """Rows of the first batches, and figures about all rows. `padding` is None if rows are cut from one stream of text.

    `choice` is the row layout of the plan. With `dedup`, duplicates and rows that are also held out were left out."""

    task: str
    source: str
    max_length: int
    samples: tuple[ShownSample, ...]
    counts: Counts
    bad_rows: tuple[Problem, ...]
    class_rows: Mapping[str, int]
    notes: tuple[str, ...]
    lengths: Lengths
    padding: PaddingShares | None
    choice: Choice
    choice_reason: str
    dedup: bool
    learns: LossScope

    @property
    def rows_left_out(self) -> int:
        """Number of table rows or documents that no step learns from and no evaluation reads."""
        return sum(self.counts.unused_by_reason(dedup=self.dedup).values())


def make_preview(loaded: LoadedConfig, count: int, progress: Progress, *, gpu: GpuChoice = None) -> Preview:
    """Return a preview with the first `count` rows of the batches. Prepares the data if necessary.

    Raises InputError if a run would be refused, except for too little memory."""
    if problems := setting_problems(loaded):
        raise ConfigError(problems)
    config = loaded.config
    task = find_task(config.task.type)
    with fitted_task_named(loaded):
        data = task.prepare(config, loaded.data, prepared_data_folder(), progress)
    hardware = with_memory_now(probe())
    resolved_config, facts = with_rows_of_step(loaded, hardware, task.facts(config, data), gpu)
    decisions = planning.decide(resolved_config, hardware, facts, gpu)
    rows = Rows(data.train_path)
    step_rows, seed, is_grouped = decisions.cut.effective_batch, config.training.seed, decisions.grouping.value
    order = RowOrder(rows.lengths, effective_batch=step_rows, seed=seed, group_by_length=is_grouped)
    tokenizer = task.load_tokenizer(config, data)
    shown_samples = preview_rows(
        rows,
        order,
        _layout(task, data, facts, decisions, tokenizer),
        count,
        tokenizer=tokenizer,
        names=names_in(data.details),
        cut=read_cut_rows(data.folder, len(rows)),
        progress=progress,
    )
    documents = [document for sample in shown_samples for document in sample.documents]
    learns: LossScope = "answers" if any(document.answer for document in documents) else "tokens"
    bad_rows = tuple(Problem(**fields) for fields in data.details.get(BAD_ROWS_KEY, ()))
    return Preview(
        task=task.name,
        source=data.source,
        max_length=data.max_length,
        samples=tuple(shown_samples),
        counts=data.counts,
        bad_rows=bad_rows,
        class_rows=_class_rows(data, rows),
        # Bad rows stand in a list of their own.
        notes=tuple(note for note in data.all_notes if not (bad_rows and str(bad_rows[0]) in note)),
        lengths=Lengths.of(rows.lengths),
        padding=_padding(resolved_config, task, data, facts, decisions, rows),
        choice="packed" if decisions.packing.value else "grouped" if decisions.grouping.value else "padded",
        choice_reason=decisions.packing.reason if task.can_pack else "",
        dedup=config.data.dedup,
        learns="labels of rows" if any(document.label for document in documents) else learns,
    )


def _class_rows(data: PreparedData, rows: Rows) -> dict[str, int]:
    """Return the training rows of each class; a row with several labels counts for each of them."""
    if data.details.get("problem_type") != MULTI_LABEL:
        return dict(data.details.get(CLASS_ROWS_KEY, {}))
    rows_of_class = rows.values(LABELS).reshape(len(rows), -1).sum(axis=0)
    return dict(zip(names_in(data.details), rows_of_class.tolist(), strict=True))


def _layout(
    task: Task, data: PreparedData, facts: DataFacts, decisions: planning.Decisions, tokenizer: Any
) -> RowLayout:
    """Return the row layout that a run would use (`training/components.py`), without loading the model."""
    config = decisions.loaded.config
    model = config_only(
        task.model_config(config, facts.vocabulary, facts.class_count),
        tokenizer,
        is_new=config.model.init == "scratch" or not config.model.model_name_or_path,
        problem_type=str(data.details.get("problem_type", "")),
    )
    widest_tokens, size_costs = longest_row(config, facts, decisions.packing.value), decisions.setup.compiles_each_size
    return RowLayout(
        collate=task.collate_in_run(config, model, pad_token_id(tokenizer), widest_tokens, size_costs=size_costs),
        collate_packed=task.collate_packed_in_run(pad_token_id(tokenizer), widest_tokens, size_costs=size_costs),
        rows_per_pass=decisions.cut.micro_batch,
        packed_width=widest_tokens if decisions.packing.value else 0,
        fixed_width=widest_tokens if config.training.torch_compile else 0,
    )


def _padding(
    loaded: ResolvedLoaded, task: Task, data: PreparedData, facts: DataFacts, decisions: planning.Decisions, rows: Rows
) -> PaddingShares | None:
    """Return the share of padding for each row layout; None if rows are cut from one stream of text."""
    if not data.lengths:
        return None
    unpacked = decisions
    if decisions.packing.value:
        unpacked_config = with_settings(loaded, {"data.packing": False})
        chosen_gpu: GpuChoice = decisions.target.gpu.index if decisions.target.gpu else "none"
        unpacked = planning.decide(unpacked_config, with_memory_now(probe()), facts, chosen_gpu)
    # A model that learns the next token does not read the last token of a document.
    input_lengths = rows.lengths - rows.documents if task.can_pack else rows.lengths
    width_multiple = task.width_rounding(decisions.shape.model_type, size_costs=unpacked.setup.compiles_each_size)
    shares_of = partial(padding_shares, capacity=data.max_length, rounding=width_multiple)
    step_rows, row_documents = min(decisions.cut.effective_batch, len(rows)), facts.row_documents
    lengths, micro_batch = np.maximum(input_lengths, 1), unpacked.cut.micro_batch
    shares = shares_of(lengths, documents=step_rows, micro_batch=micro_batch, packs=task.can_pack)
    if row_documents == 1:
        return shares
    # The documents of a row stay together if packed; padded, each is a row of its own.
    lengths = np.maximum(rows.values(DOCUMENT_LENGTHS) - int(task.can_pack), 1)
    step_documents, micro_batch = step_rows * row_documents, micro_batch * row_documents
    document_shares = shares_of(lengths, documents=step_documents, micro_batch=micro_batch, packs=False)
    return replace(document_shares, packed=shares.packed)


# Brackets mark trained tokens and special tokens if there may be no colours. Text from the data passes `safe_text`.

Mark = Literal["head", "text", "trained", "special", "note"]
Marked = tuple[str, Mark]
MOST_CHARACTERS = 6000
_INDENT = 4
_LABEL = 10
_BAR = 24
_SHOWN_CLASSES = 12


@dataclass(frozen=True, slots=True)
class Signs:
    """Characters that mark trained text and special tokens, stand for a line break, and draw bars."""

    trained: tuple[str, str]
    special: tuple[str, str]
    line_break: str
    bar: str


UNICODE_SIGNS = Signs(("\u27e6", "\u27e7"), ("\u27e8", "\u27e9"), "\u23ce", "\u2588")
ASCII_SIGNS = Signs(("[[", "]]"), ("{", "}"), "\\n", "#")
NO_SIGNS = Signs(("", ""), ("", ""), "\u23ce", "\u2588")
"""Signs for output in which colours mark the text."""


def sample_lines(
    sample: ShownSample, number: int, count: int, signs: Signs, width: int, most: int = MOST_CHARACTERS
) -> Iterator[list[Marked]]:
    """Yield the lines of a row: a title, then its documents. A text beyond `most` characters loses its middle."""
    source = f"step {sample.step}, pass {sample.forward_pass}, row {sample.row}"
    yield [(f"sample {number} of {count}: {source}", "head")]
    yield [(f"  {_sizes(sample)}", "note")]
    for position, document in enumerate(sample.documents, 1):
        yield [(f"  {_document_words(document, position, len(sample.documents))}", "note")]
        if any(piece.tag for piece in document.pieces):
            yield from _tagged(document.pieces, signs, width)
        else:
            yield from _flowing(document.pieces, signs, width, most)
        if document.label:
            yield [("  label: ", "note"), (one_line(document.label, 200), "trained")]
        if document.answer:
            yield [("  answer:", "note")]
            yield from _flowing(document.answer, signs, width, most)


def _sizes(sample: ShownSample) -> str:
    documents_text = f"{len(sample.documents)} documents, " if len(sample.documents) > 1 else ""
    answer_text = f", +{sample.answer_padding:,} padding in the answer" if sample.answer_padding else ""
    return f"{documents_text}{_tokens(sample)}, +{sample.padding:,} padding{answer_text}"


def _tokens(row: ShownSample | ShownDocument) -> str:
    """Return the tokens of a row or document as text: `12 tokens, 11 trained (92 %)`."""
    parts = row.documents if isinstance(row, ShownSample) else (row,)
    tokens_text = quantity(row.tokens, "token")
    if parts and all(part.label for part in parts):
        return f"{tokens_text}, labelled"
    return f"{tokens_text}, {row.trained_tokens:,} trained ({row.trained_tokens / max(row.tokens, 1):.0%})"


def _document_words(document: ShownDocument, position: int, count: int) -> str:
    cut_text = {True: ", cut", False: ", whole", None: ""}[document.cut]
    part_text = f", document {document.part} of this row" if document.part else ""
    if count == 1:
        return f"row {document.number:,} of the training data{part_text}{cut_text}"
    return f"document {position}: row {document.number:,}{part_text}, {_tokens(document)}{cut_text}"


def _flowing(pieces: Sequence[Piece], signs: Signs, width: int, most: int) -> Iterator[list[Marked]]:
    for line in _wrapped(list(_signed(_shortened(pieces, most), signs)), width - _INDENT):
        yield [(" " * _INDENT, "text"), *line]


def _shortened(pieces: Sequence[Piece], most: int) -> Iterator[Piece | str]:
    """Yield the pieces of a text. Beyond `most` characters, a remark replaces the middle."""
    total_characters, offset = sum(len(piece.text) for piece in pieces), 0
    gap = (most // 2, total_characters - most // 2) if total_characters > most else (total_characters, total_characters)
    for piece in pieces:
        start, end = offset, offset + len(piece.text)
        offset = end
        head, tail = piece.text[: max(gap[0] - start, 0)], piece.text[max(gap[1] - start, 0) :]
        if end <= gap[0] or start >= gap[1]:
            yield piece
            continue
        if head:
            yield _part(piece, head)
        if start <= gap[0] < end:
            yield f" ... {gap[1] - gap[0]:,} characters not shown ... "
        if tail and end > gap[1]:
            yield _part(piece, tail)


def _part(piece: Piece, text: str) -> Piece:
    return Piece(text=text, tokens=piece.tokens, trained=piece.trained, special=piece.special)


def _signed(pieces: Iterable[Piece | str], signs: Signs) -> Iterator[Marked]:
    """Yield the pieces as marked texts, with the signs for trained text around each group of trained pieces."""
    for is_trained, group_pieces in groupby(pieces, key=lambda piece: isinstance(piece, Piece) and piece.trained):
        if is_trained:
            yield signs.trained[0], "trained"
        for piece in group_pieces:
            if isinstance(piece, str):
                yield piece, "note"
            elif piece.special:
                yield _special(piece, signs), "special"
            else:
                # A line break is shown and also breaks the line. Other control characters are only shown.
                text = show_control_characters(piece.text).replace("\t", "    ").replace("\n", f"{signs.line_break}\n")
                yield text, "trained" if is_trained else "text"
        if is_trained:
            yield signs.trained[1], "trained"


def _special(piece: Piece, signs: Signs) -> str:
    return f"{signs.special[0]}{one_line(piece.text)}{signs.special[1]}"


def _wrapped(marked: Sequence[Marked], width: int) -> Iterator[list[Marked]]:
    """Yield lines of at most `width` cells: cut at line breaks, else after the last blank, else anywhere."""
    line: list[tuple[str, Mark]] = []
    used_cells = blank_end = 0
    for text, mark in marked:
        for character in text:
            if character == "\n":
                yield _joined(line)
                line, used_cells, blank_end = [], 0, 0
                continue
            cells = cell_len(character)
            if used_cells + cells > max(width, 8):
                line_end = blank_end or len(line)
                yield _joined(line[:line_end])
                line = line[line_end:]
                used_cells, blank_end = sum(cell_len(kept_character) for kept_character, _ in line), 0
            line.append((character, mark))
            used_cells += cells
            if character == " ":
                blank_end = len(line)
    if line:
        yield _joined(line)


def _joined(line: Sequence[Marked]) -> list[Marked]:
    return [("".join(sign for sign, _ in part), mark) for mark, part in groupby(line, key=lambda marked: marked[1])]


def _tagged(pieces: Sequence[Piece], signs: Signs, width: int) -> Iterator[list[Marked]]:
    """Yield the lines of a row with tags: its words in columns, each above its tag."""
    word_cells: list[Marked] = []
    tag_cells: list[Marked] = []
    used_cells = 0
    for piece in pieces:
        text = _special(piece, signs) if piece.special else one_line(piece.text).strip()
        tag = one_line(piece.tag, 40)
        cells = max(cell_len(text), cell_len(tag)) + 1
        if word_cells and used_cells + cells > width - _INDENT:
            yield from _word_and_tag_lines(word_cells, tag_cells)
            word_cells, tag_cells, used_cells = [], [], 0
        mark: Mark = "special" if piece.special else "trained" if piece.tag else "text"
        word_cells.append((text + " " * (cells - cell_len(text)), mark))
        tag_cells.append((tag + " " * (cells - cell_len(tag)), "note"))
        used_cells += cells
    yield from _word_and_tag_lines(word_cells, tag_cells)


def _word_and_tag_lines(words: list[Marked], tags: list[Marked]) -> Iterator[list[Marked]]:
    for cells in (words, tags):
        yield [(" " * _INDENT, "text"), *cells]


def legend(signs: Signs, learns: LossScope) -> list[Marked]:
    special: Marked = (f"{signs.special[0]}special token{signs.special[1]}", "special")
    if learns == "labels of rows":
        return [("text that the model reads  ", "text"), special, ("  label that it learns", "trained")]
    return [(f"{signs.trained[0]}trained{signs.trained[1]}", "trained"), ("  not trained  ", "text"), special]


def summary_lines(preview: Preview, signs: Signs) -> Iterator[str]:
    """Yield lines about all rows: counts, trained tokens, lengths and padding, then bad rows and notes."""
    yield f"{one_line(preview.source)}: {preview.task}"
    yield from (f"{label:<{_LABEL}}{text}" for label, text in _rows_of_numbers(preview))
    yield from _histogram(preview, signs)
    yield f"{'padding':<{_LABEL}}{_padding_words(preview)}"
    if preview.bad_rows:
        yield "unusable rows:"
        yield from (f"  {one_line(str(problem))}" for problem in preview.bad_rows)
    yield from (f"note: {one_line(note)}" for note in preview.notes)


def _histogram(preview: Preview, signs: Signs) -> Iterator[str]:
    most_rows = max(rows for _, _, rows in preview.lengths.histogram)
    number_width = len(f"{preview.lengths.longest:,}")
    for low, high, rows in preview.lengths.histogram:
        bar = signs.bar * (max(1, round(rows / most_rows * _BAR)) if rows else 0)
        yield f"{'':<{_LABEL}}{low:>{number_width},} to {high:>{number_width},}  {bar:<{_BAR}} {rows:,}"


def _rows_of_numbers(preview: Preview) -> Iterator[tuple[str, str]]:
    counts, lengths = preview.counts, preview.lengths
    yield "read", _read(preview)
    yield "rows", f"{counts.train_rows:,} to train, {counts.eval_rows:,} held out, {preview.rows_left_out:,} skipped"
    labels_text, tokens_text = f"{counts.train_labels:,}", f"{counts.train_tokens:,}"
    match preview.learns:
        case "labels of rows":
            labels_per_row = "any number" if counts.train_labels > counts.train_rows else "one"
            yield "labels", f"{labels_per_row} per row{_classes(preview.class_rows)}"
        case "answers":
            yield "trained", f"{labels_text} answer tokens for {tokens_text} input tokens"
        case _:
            share = counts.train_labels / max(counts.train_tokens, 1)
            yield "trained", f"{labels_text} of {tokens_text} tokens ({share:.0%})"
    longest = quantity(lengths.longest, "token")
    yield "lengths", f"median {lengths.median:,.0f}, 90 % up to {lengths.percent_90:,.0f}, longest {longest}"


def _read(preview: Preview) -> str:
    counts = preview.counts
    faults = f"{counts.bad_rows:,} bad, {counts.repeated_rows:,} duplicate, {counts.leaked_rows:,} leaked"
    if counts.rows_read:
        losses = f"{counts.truncated_rows:,} truncated, {counts.untrained_rows:,} without a trained token"
        return f"{quantity(counts.rows_read, 'row')}: {faults}, {losses}"
    if counts.documents_read:
        pieces = f" into {counts.pieces:,} pieces" if counts.cut_documents else ""
        short = f"{counts.short_documents:,} shorter than two tokens"
        return f"{quantity(counts.documents_read, 'document')}: {faults}, {counts.cut_documents:,} cut{pieces}, {short}"
    document_count = counts.train_documents + counts.eval_documents
    return f"{quantity(document_count, 'document')}: one stream of text, cut at every {preview.max_length:,} tokens"


def _classes(class_rows: Mapping[str, int]) -> str:
    if not class_rows:
        return ""
    classes = sorted(class_rows.items(), key=lambda item: -item[1])
    classes_text = ", ".join(f"{one_line(name, 30)} {rows:,}" for name, rows in classes[:_SHOWN_CLASSES])
    more_text = f", and {len(classes) - _SHOWN_CLASSES:,} more" if len(classes) > _SHOWN_CLASSES else ""
    return f": {classes_text}{more_text}"


def _padding_words(preview: Preview) -> str:
    shares = preview.padding
    if shares is None:
        return "none: rows are cut from one stream of text"
    packed_text = "" if shares.packed is None else f", packed {shares.packed:.0%}"
    verb = {"padded": "pads", "grouped": "groups by length", "packed": "packs"}[preview.choice]
    why = f" ({preview.choice_reason})" if preview.choice_reason else ""
    return f"padded {shares.padded:.0%}, grouped by length {shares.grouped:.0%}{packed_text}; the plan {verb}{why}"


def as_values(preview: Preview) -> dict[str, Any]:
    """Return the whole preview as JSON values, with nothing shortened."""
    fields = asdict(preview)
    samples = [
        {"tokens": sample.tokens, "trained_tokens": sample.trained_tokens, **values}
        for sample, values in zip(preview.samples, fields.pop("samples"), strict=True)
    ]
    return {**fields, "rows_left_out": preview.rows_left_out, "samples": samples}
