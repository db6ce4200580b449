"""Rows of a text, or of a pair of them, with one label, several, or a number: as a classifier reads them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unicodedata import normalize

import numpy as np

from tui_trainer.config.sections import Config
from tui_trainer.data.columns.labels import (
    Kind,
    LabelReader,
    kind_of,
    label_columns,
    labels_beside,
    marked_columns,
    ordered,
    refuse_texts,
    values_in,
)
from tui_trainer.data.columns.reader import Encoded, Example
from tui_trainer.data.columns.row import (
    AUTO,
    Row,
    columns_of,
    file_of,
    listed,
    missing_column,
    refuse_rejected,
    refuse_unlearnt,
)
from tui_trainer.data.columns.text_columns import NUMBER, ColumnChoices, pair_of_texts, strings_of, text_of
from tui_trainer.data.preparing.byte_bpe import Specials
from tui_trainer.data.preparing.token_rows import COLUMN, LABELS
from tui_trainer.errors import ConfigError, DataError, Problem
from tui_trainer.models.heads import ENCODER_DECODER, Head, types_with
from tui_trainer.models.token_ids import cut_token_ids
from tui_trainer.tasks.parts.learns_from_data import TableReader
from tui_trainer.tasks.parts.scores import METRICS_OF, metric_problems
from tui_trainer.terminal.safe_text import one_line

SEGMENTS = "token_type_ids"
_SHOWN_CLASSES = 12
# From so many rows on, more classes than half of the rows are texts or numbers, not classes; and where each row has its
# own, from fewer on.
_ROWS_TO_TELL, _ROWS_OF_THEIR_OWN = 20, 10
SECOND_TEXT_KEY = "data.text_pair_column"
_NO_TEXT = "write a text, or remove the row"
_TAKE_OUT = "remove the row, or add rows like it to data.path"


class LabelledTexts(TableReader):
    """See `data/columns/reader.py` for what each part promises. `more` of a row are the segments of a pair."""

    def __init__(self, config: Config, head: Head, specials: Specials, model_config: Mapping[str, Any]) -> None:
        """`model_config`: of the model that will read the rows, for the order of its labels and its segments."""
        super().__init__(config, head, specials)
        self.kind: Kind = "single_label_classification"
        self._model_config = model_config
        self._pair = config.data.text_pair_column
        self._choices = ColumnChoices(config.data.text_column, self._pair, has_answers=False)
        self._columns: dict[tuple[str, frozenset[str]], str] = {}
        self._labels: LabelReader | None = None
        self._text = ""
        self._unread: tuple[str, ...] = ()
        self._counts: Counter[str] = Counter()
        self._names: tuple[str, ...] = ()
        self._numbers: dict[str, int] = {}

    def know(self, tokenizer: Any, model_config: Mapping[str, Any]) -> None:
        super().know(tokenizer, model_config)
        self.kind = model_config["problem_type"]
        if self.kind == "regression":
            return
        self._names = tuple(model_config["id2label"].values())
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._counts, self.classes = Counter(dict.fromkeys(self._names, 0)), len(self._names)

    def begin(self, head: Sequence[Row]) -> None:
        """Raises DataError for columns that cannot be told, ConfigError for settings that do not go with the labels."""
        label = file_of(head)
        data, found = self.config.data, strings_of(head)
        if data.text_column == AUTO:
            refuse_unlearnt(head)
        columns = label_columns(data.label_column, head, label, (data.text_column, self._pair))
        if self._pair and self._pair not in found:
            raise missing_column(self._pair, label, found, key=SECOND_TEXT_KEY)
        if (
            data.text_column == AUTO
            and not (self._pair or self.knows)
            and (two := pair_of_texts(head))
            and not {*columns}.intersection(two)
        ):
            first, second = (one_line(name, 40) for name in two)
            hint = f"set data.text_column and {SECOND_TEXT_KEY} for both, or only data.text_column for one"
            raise DataError(f"the rows have two texts, '{first}' and '{second}'", where=label, hint=hint)
        place = label, frozenset(found)
        if place not in self._columns:
            self._columns[place] = self._choices.choose(head, without=(*columns, self._pair))
        self._text = self._columns[place]
        if self._labels is None:
            requested = self.config.task.problem_type
            values = values_in(head, *columns)
            if not self.knows:
                self.kind = kind_of(values, label, columns[0]) if requested == "auto" else requested
                refuse_texts(values, label, columns[0])
            self._labels = LabelReader(columns, self.kind, values)
            beside = (*labels_beside(columns_of(head), columns[0]), *marked_columns(head))
            self._unread = tuple(name for name in dict.fromkeys(beside) if name not in columns)
            refuse_settings(self.config, self.kind)
            if not self.knows and self.kind != "regression":
                self._counts.update(dict.fromkeys(self._labels.classes, 0))
            self.classes = 1 if self.kind == "regression" else len(self._names)
        elif {*columns} != {*self._labels.columns} and max(len(columns), len(self._labels.columns)) > 1:
            what = f"the classes are {listed(columns)}, but in earlier files {listed(self._labels.columns)}"
            raise DataError(what, where=label, hint="use the same columns in each file")
        else:
            self._labels.columns = columns

    @property
    def found_columns(self) -> Mapping[str, str]:
        label = ", ".join(self._labels.columns) if self._labels else ""
        return {"text_column": self._text, "text_pair_column": self._pair, "label_column": label}

    def read(self, row: Row) -> Example:
        assert self._labels is not None, "`begin` comes first"
        refuse_rejected(row)
        texts = [text_of(row, self._text), *([text_of(row, self._pair)] if self._pair else [])]
        for column, text in zip((self._text, self._pair), texts, strict=False):
            if not text.strip():
                raise DataError(f"the column '{one_line(column, 40)}' is empty", where=row.where, hint=_NO_TEXT)
        if self.kind == "regression":
            return Example("\n".join(texts), (texts, self._labels.number(row)))
        names = self._labels.names(row)
        if self.held_out or self.knows:
            self.refuse_outside("label", names, self._counts, row.where, _TAKE_OUT)
        elif not self._names:
            self._counts.update(names)
            self.classes = len(self._counts)
        return Example("\n".join(texts), (texts, names), stratum=names[0] if names else "")

    def settle(self) -> None:
        if self.kind != "regression" and not self.knows:
            self._settle_classes()
        self.refuse_no_room("a text", pair=bool(self._pair))
        # Whether the model reads numbers that tell the second text from the first, and the tokenizer gives them.
        if self._pair and int(self._model_config.get("type_vocab_size") or 0) >= 2:
            gives = self._specials.tells_pairs if self.learns else SEGMENTS in self.tokenizer.model_input_names
            self.columns = (COLUMN, LABELS, SEGMENTS) if gives else self.columns

    def _settle_classes(self) -> None:
        assert self._labels is not None, "rows were read"
        column, rows = one_line(self._labels.columns[0], 40), sum(self._counts.values())
        wanted = 2 if self.kind == "single_label_classification" else 1
        if len(self._counts) < wanted:
            only = f": '{one_line(next(iter(self._counts)), 40)}'" if self._counts else ""
            message = f"the column '{column}' holds {len(self._counts)} label{'' if only else 's'}{only}"
            hint = "a classifier needs at least two classes"
            if set(self._counts) == {"-1"}:
                hint = "in datasets on the Hub, -1 often marks the hidden labels of a test split: choose another split"
            raise DataError(message, where=self._source(), hint=hint)
        owned = rows >= _ROWS_OF_THEIR_OWN and len(self._counts) == rows
        if owned or (rows >= _ROWS_TO_TELL and 2 * len(self._counts) > rows):
            message = f"the column '{column}' holds {len(self._counts):,} different labels in {rows:,} rows"
            hint = 'set data.label_column to the column of classes, or task.problem_type = "regression"'
            raise DataError(message, where=self._source(), hint=hint)
        self._names = ordered(self._counts, self._model_config.get("id2label"))
        self._numbers = {name: number for number, name in enumerate(self._names)}

    def _source(self) -> str:
        return next(iter(self._columns))[0]

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        has_segments, kind = SEGMENTS in self.columns, self._model_config.get("model_type")
        columns = zip(*(example.content[0] for example in examples), strict=True)
        first, *pairs = (without_spelt_ends(texts, self.tokenizer, kind) for texts in columns)
        found = cut_token_ids(
            self.tokenizer, first, self.max_length, pairs=pairs[0] if pairs else None, segments=has_segments
        )
        labels = [self._label_numbers(example) for example in examples]
        rows = [{COLUMN: ids, LABELS: label} for ids, label in zip(found.ids, labels, strict=True)]
        for row, segments in zip(rows, found.segments, strict=False):
            row[SEGMENTS] = segments
        # A decoder's tokenizer may make nothing at all of a text of odd signs.
        return [
            Encoded(row, labels=len(row[LABELS]) if row[COLUMN] else 0, truncated=is_cut, marked=is_marked)
            for row, is_cut, is_marked in zip(rows, found.is_cut, found.is_marked, strict=True)
        ]

    def _label_numbers(self, example: Example) -> list[int]:
        """One number; for several labels a row a 0 or 1 for each class; of a regression the bits of a float32."""
        label = example.content[1]
        if self.kind == "regression":
            return [int(np.float32(label).view(np.int32))]
        if self.kind == "multi_label_classification":
            has = set(label)
            return [int(name in has) for name in self._names]
        return [self._numbers[label[0]]]

    def details(self) -> dict[str, Any]:
        return {"classes": self.classes, "problem_type": self.kind, "names": list(self._names)}

    def notes(self) -> list[str]:
        assert self._labels is not None, "rows were read"
        words = self.kind.replace("_", " ")
        why = "inferred from the first rows" if self.config.task.problem_type == AUTO else "set by task.problem_type"
        columns, form = self._labels.columns, self._labels.note()
        where = f"the labels are in the column '{one_line(columns[0], 40)}'"
        if columns[1:]:
            where = f"each of the columns {listed(columns)} is a class; 1 means that the row has it"
        also = f" (other candidates: {listed(self._unread)}; set data.label_column to choose)" if self._unread else ""
        notes = [
            *self._choices.notes(),
            *self.language_notes(),
            f"{where}: {words}, {why}{also}",
            *filter(None, [form]),
        ]
        return [*notes, ", ".join(self._class_words()), *self._alike()] if self._names else notes

    def _alike(self) -> list[str]:
        """Classes that are one to a reader: but for cases, blanks, signs that are not seen or are composed otherwise,
        and forms of a number."""
        written: dict[str | float, list[str]] = {}
        for name in self._names:
            seen = "".join(filter(str.isprintable, normalize("NFKC", name).casefold())).replace(" ", "")
            number = float(seen) if NUMBER.fullmatch(seen) and "," not in seen and seen.count(".") < 2 else None
            written.setdefault(seen if number is None else number, []).append(f"'{one_line(name, 30)}'")
        found = next((names for names in written.values() if len(names) > 1), None)
        return [f"{' and '.join(found)} are different classes: use one spelling if they are the same"] if found else []

    def _class_words(self) -> Iterator[str]:
        """`3 classes: joy 812, anger 90, ...`, the largest first."""
        shown = self._counts.most_common(_SHOWN_CLASSES)
        for place, (name, count) in enumerate(shown):
            yield (f"{len(self._names)} classes: " if not place else "") + f"{one_line(name, 30)} {count:,}"
        if more := len(self._names) - len(shown):
            yield f"and {more:,} more"


def without_spelt_ends(texts: Sequence[str], tokenizer: Any, model_type: object) -> Sequence[str]:
    """With a blank in each end token that a text spells (</s>), for models with a decoder: they read the class off
    their end token, and want as many in each row."""
    end = tokenizer.eos_token
    if not end or model_type not in types_with(ENCODER_DECODER):
        return texts
    return [text.replace(end, f"{end[0]} {end[1:]}") for text in texts]


def refuse_settings(config: Config, kind: Kind) -> None:
    """Raises ConfigError for settings that mean nothing for labels of this kind."""
    problems = metric_problems(config, METRICS_OF[kind], f"for a {kind.replace('_', ' ')}")
    if kind == "regression" and config.training.label_smoothing_factor:
        key = "training.label_smoothing_factor"
        problems.append(Problem(message="label smoothing does not apply to regression", key=key, hint="set it to 0"))
    if kind == "regression" and config.task.class_weights != "none":
        message = "a regression has no classes to weight"
        problems.append(Problem(message=message, key="task.class_weights", hint='set it to "none"'))
    if problems:
        raise ConfigError(problems)
