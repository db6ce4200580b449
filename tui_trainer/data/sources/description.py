"""A source in words: its files, their form, and the column that holds the text."""

from collections import Counter

from tui_trainer.data.sources.file_formats import Form
from tui_trainer.data.sources.size_estimate import size_of
from tui_trainer.data.sources.source import Source
from tui_trainer.safe_text import one_line

# What is of no known ending and can be used is read as text.
FORM_NAMES: dict[Form, str] = {
    "text": "plain text",
    "unknown": "plain text",
    "jsonl": "JSON Lines",
    "json": "JSON",
    "csv": "CSV",
    "tsv": "TSV",
    "parquet": "Parquet",
    "arrow": "Arrow",
}


def source_words(source: Source, *, reads_text: bool) -> str:
    """`rows.jsonl (1.2 MiB), JSON Lines, the text in the column 'body'`.

    `reads_text`: the task takes one column of text. The column is that of the beginnings of some files. Never raises
    for what stands in the files.
    """
    parts = [source.description]
    forms = Counter(FORM_NAMES.get(entry.form, entry.form) for entry in source.entries)
    if len(forms) == 1:
        parts += forms
    elif forms:
        parts.append(" and ".join(f"{count:,} {name}" for name, count in forms.most_common()))
    if reads_text and source.entries and (columns := size_of(source).columns):
        shown = " and ".join(f"'{one_line(name, 40)}'" for name in columns)
        parts.append(f"the text in the column{'s' if len(columns) > 1 else ''} {shown}")
    return ", ".join(parts)
