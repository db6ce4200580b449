"""What is counted while data is prepared."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What was counted while preparing.

    In a stream of tokens, labels are one fewer than tokens a side; where each document is a row of its own, one fewer
    a document. `longest_row` is in labels. Of the documents of both sides, `cut_documents` gave `pieces` rows, and
    `short_documents` had fewer than two tokens and are left out of all other numbers.

    Of a table's `rows_read`, or the `documents_read` of text, `bad_rows` could not be used;
    `repeated_rows` have the text of an earlier one, and `leaked_rows` of the training side that of a held-out one: they
    are left out with data.dedup. Of a table, `untrained_rows` have no label left in the first max_length tokens and are
    left out, `truncated_rows` lost their end, and `truncated_answers` that of the answer to them; the longest row of
    labels has `longest_labels`. What an epoch uses twice is counted twice, but for what was read, bad, repeated or
    leaked.
    """

    train_rows: int
    train_tokens: int
    train_documents: int
    train_characters: int
    eval_rows: int
    eval_tokens: int
    eval_documents: int
    eval_characters: int
    vocabulary: int
    unknown_eval_tokens: int
    train_labels: int
    eval_labels: int
    longest_row: int
    rows_read: int = 0
    documents_read: int = 0
    bad_rows: int = 0
    repeated_rows: int = 0
    leaked_rows: int = 0
    truncated_rows: int = 0
    truncated_answers: int = 0
    longest_labels: int = 0
    untrained_rows: int = 0
    cut_documents: int = 0
    pieces: int = 0
    short_documents: int = 0
