"""What a file holds, as far as its name promises it."""

from pathlib import PurePath
from typing import Literal

Form = Literal["text", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "conll", "unsupported", "unknown"]

FORMS: dict[str, Form] = {
    **dict.fromkeys((".txt", ".md", ".rst", ".py"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    **dict.fromkeys((".arrow", ".feather"), "arrow"),
    **dict.fromkeys((".conll", ".bio", ".iob", ".iob2", ".bioes"), "conll"),
    **dict.fromkeys((".xlsx", ".docx", ".pdf", ".zip", ".tar", ".tgz", ".zst", ".bz2", ".xz", ".7z"), "unsupported"),
}
PACKED_INSIDE = frozenset({"parquet", "arrow"})  # these are compressed within, and read from their end
SUPPORTED = (
    "supported are plain text (.txt .md .rst .py and other text files), .jsonl .ndjson .json .csv .tsv "
    ".conll .bio .iob .iob2 .bioes, .gz of each, .parquet .arrow .feather"
)


def form_of(path: PurePath) -> Form:
    """What the name promises; `.gz` is looked through."""
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    compressed = bool(endings) and endings[-1] == ".gz"
    if compressed:
        endings.pop()
    form = FORMS.get(endings[-1], "unknown") if endings else "unknown"
    return "unsupported" if compressed and form in PACKED_INSIDE else form
