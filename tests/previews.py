"""A made-up preview: packed documents of a conversation, one of them with wide characters; and `preview` commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tui_trainer.data.batching.pack import PaddingShares
from tui_trainer.data.preparing.cache import Counts
from tui_trainer.data.preview import Lengths, Piece, ShownDocument, ShownSample
from tui_trainer.errors import Problem
from tui_trainer.launching.preview import Preview


def piece(text: str, tokens: int, *, trained: bool = False, special: bool = False, tag: str = "") -> Piece:
    return Piece(text=text, tokens=tokens, trained=trained, special=special, tag=tag)


def document(number: int, *pieces: Piece, cut: bool | None = False, label: str = "", answer=()) -> ShownDocument:
    return ShownDocument(
        number=number,
        pieces=pieces,
        tokens=sum(one.tokens for one in (*pieces, *answer)),
        trained_tokens=sum(one.tokens for one in (*pieces, *answer) if one.trained),
        cut=cut,
        label=label,
        answer=tuple(answer),
    )


BOS, EOS = piece("<bos>", 1, special=True), piece("<eos>", 1, trained=True, special=True)
TALK = document(812, BOS, piece("user: What is a [sheep]?\nassistant:", 12), piece(" An animal.", 3, trained=True), EOS)
STRANGE = document(9, BOS, piece("\u6f22\u5b57 caf\u00e9 \x1b[31mred\tend <eos>", 20, trained=True), EOS, cut=True)
ROW = ShownSample(step=1, forward_pass=1, row=1, documents=(TALK, STRANGE), padding=37)
COUNTS = Counts(
    train_rows=900, train_tokens=40_000, train_documents=900, train_characters=160_000, eval_rows=90, eval_tokens=4000,
    eval_documents=90, eval_characters=16_000, vocabulary=384, unknown_eval_tokens=0, train_labels=9_000,
    eval_labels=900, longest_row=128, rows_read=1010, bad_rows=12, repeated_rows=7, leaked_rows=3, truncated_rows=40,
    untrained_rows=8,
)  # fmt: skip
BAD_ROWS = (
    Problem(message="the column 'messages' is a string, not a list", where="conversations.jsonl, line 3"),
    Problem(
        message="the row has no column 'messages'", where="conversations.jsonl, line 8", hint="columns found: prompt"
    ),
)
PREVIEW = Preview(
    task="chat",
    source="conversations.jsonl (2.1 MiB)",
    max_length=128,
    samples=(ROW, ShownSample(step=1, forward_pass=1, row=2, documents=(TALK,), padding=0)),
    counts=COUNTS,
    bad_rows=BAD_ROWS,
    class_rows={},
    notes=("the conversations are in the column 'messages'",),
    lengths=Lengths(median=40, percent_90=96.5, longest=128, histogram=((5, 45, 600), (46, 86, 0), (87, 128, 300))),
    padding=PaddingShares(padded=0.41, grouped=0.06, packed=0.02),
    choice="packed",
    choice_reason="16 documents of about 44 tokens fill 6.1 rows",
    dedup=False,
    learns="tokens",
)


def table(name: str, rows: list[dict[str, Any]]) -> str:
    """Write these rows to a file in the folder of the test."""
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return name


def scratch(task: str, path: str, *settings: str) -> list[str]:
    """Return the command for a small model from scratch that trains on all rows."""
    own = ("model.init=scratch", "tuning.method=full", "model.scratch.vocab_size=300", "data.eval_fraction=0")
    return ["preview", "--task", task, "--data", path, *(word for one in (*own, *settings) for word in ("--set", one))]
