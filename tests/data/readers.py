"""A reader of tables as tasks have one, and files of rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tui_trainer.data.columns.reader import Encoded, Example, Reader
from tui_trainer.data.sources.resolved import ResolvedData
from tui_trainer.errors import DataError

WIDTH = 8


def data_at(*paths: Path, eval_paths: Iterable[Path | None] = (), text_column: str = "auto") -> ResolvedData:
    held_out = tuple(str(path) for path in eval_paths if path)
    return ResolvedData(paths=tuple(map(str, paths)), eval_paths=held_out, text_column=text_column)


class Characters(Reader):
    """Tokens are the characters of `text`, and the label is `label`; a text that begins with "-" trains nothing."""

    columns = ("input_ids", "labels")
    trains_tokenizer = False

    def __init__(self) -> None:
        self.heads: list[list] = []

    def begin(self, head):
        self.heads.append(list(head))
        if "text" not in head[0].values:
            raise DataError("there is no column 'text'", where=head[0].where)

    def read(self, row):
        text, label = row.values.get("text"), row.values.get("label", 0)
        if not isinstance(text, str) or not text:
            raise DataError("the text is missing", where=row.where)
        return Example(text, (text, int(label)), stratum=str(label))

    def finish_reading(self):
        pass

    def encode(self, examples):
        found = []
        for example in examples:
            text, label = example.content
            columns = {"input_ids": list(map(ord, text[:WIDTH])), "labels": [label]}
            found.append(Encoded(columns, 0 if text.startswith("-") else 1, truncated=len(text) > WIDTH))
        return found

    def vocabulary(self):
        return 256

    def details(self):
        return {"classes": 2}

    def notes(self):
        return ["the text is in the column 'text'"]


def write(path: Path, rows: Iterable[str | dict]) -> Path:
    """Write JSON Lines: a text alone is a row of one column."""
    path.write_text("".join(json.dumps({"text": row} if isinstance(row, str) else row) + "\n" for row in rows))
    return path
