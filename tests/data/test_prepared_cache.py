"""The cache of prepared data: when an entry is reused, made again or left out."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.data.readers import data_at
from tui_trainer.data.preparing import cache
from tui_trainer.data.preparing.byte_bpe import TRAINED_TOKENIZER_KEY
from tui_trainer.data.preparing.cache import PreparedData, RowSettings, find_entry
from tui_trainer.data.preparing.prepare import prepare
from tui_trainer.data.preparing.tokenizing import TextReader
from tui_trainer.errors import DataError

CUT = RowSettings(rows="documents", max_length=8, eval_fraction=0.2, seed=42, tokenizer="words")
TRAINED = replace(CUT, tokenizer=TRAINED_TOKENIZER_KEY)


def encode(texts: Sequence[str]) -> list[list[int]]:
    """Return one token for each word: its number, plus ten."""
    return [[10 + int(word) for word in re.findall(r"\d+", text)] for text in texts]


def write(path: Path, count: int) -> Path:
    path.write_text(
        "".join(json.dumps({"text": f"{n} {n + 1} {n + 2}", "body": f"{n} 7"}) + "\n" for n in range(count))
    )
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "data.jsonl", 30)


def prepared(
    path: Path,
    eval_path: Path | None = None,
    *,
    cut: RowSettings = CUT,
    encode: Callable[[Sequence[str]], list[list[int]]] = encode,
    progress: Callable[..., None] | None = None,
    folder: Path | None = None,
) -> PreparedData:
    reader = (
        TextReader(None, eos_id=None, vocabulary=300) if cut is TRAINED else TextReader(encode, eos_id=1, vocabulary=99)
    )
    data = data_at(path, eval_paths=[eval_path], text_column="text")
    return prepare(data, reader, cut, folder or path.parent / "cache", progress)


def entries(data: Path) -> list[Path]:
    return list((data.parent / "cache").iterdir())


def test_a_second_call_uses_the_entry_of_the_first(data):
    source, folder = data_at(data, text_column="text"), data.parent / "cache"
    assert find_entry(source, CUT, folder, None) is None
    assert not folder.exists()
    first = prepared(data)
    again = prepared(data, encode=lambda texts: pytest.fail("the texts were encoded again"))
    found = find_entry(source, CUT, folder, None)
    assert not first.from_cache and again.from_cache and found is not None and found.from_cache
    for entry in (again, found):
        assert (entry.folder, entry.counts, entry.lengths) == (first.folder, first.counts, first.lengths)
        assert (entry.notes, entry.details) == (first.notes, first.details)


CHANGES = (
    {"max_length": 9}, {"eval_fraction": 0.3}, {"seed": 1}, {"max_chars": 99}, {"max_rows": 9}, {"weights": (0.5,)},
    {"dedup": True}, {"skip_bad_rows": True}, {"tokenizer": "other"}, {"reading": "other"}, {"rows": "stream"},
)  # fmt: skip


def test_another_setting_or_content_is_another_entry(data, subtests, monkeypatch):
    first = prepared(data)
    folder = data.parent / "cache"
    for change in CHANGES:
        with subtests.test(change=change):
            changed = replace(CUT, **change)
            assert find_entry(data_at(data, text_column="text"), changed, folder, None) is None
    assert find_entry(data_at(data, text_column="body"), CUT, folder, None) is None
    held_out = write(data.parent / "eval.jsonl", 3)
    assert len({first.folder, prepared(data, held_out).folder, prepared(data, write(held_out, 4)).folder}) == 3
    with monkeypatch.context() as patch:
        patch.setattr(cache, "PREPARATION_VERSION", cache.PREPARATION_VERSION + 1)
        assert not prepared(data).from_cache
    data.write_text(data.read_text().replace("1", "2"))
    changed = prepared(data)
    assert not changed.from_cache and changed.fingerprint != first.fingerprint


def test_a_damaged_entry_is_made_again(data, subtests):
    first = prepared(data, cut=TRAINED)
    for name in ("train.arrow", "eval.arrow", "tokenizer.json", "manifest.json"):
        whole = (first.folder / name).read_bytes()
        manifests = (b"[]", b"{}", b'{"format_version": 99}', b'{"format_version": 1, "files": []}')
        for damage in (None, whole[:-10], b"nonsense", *(manifests if name == "manifest.json" else ())):
            with subtests.test(f"{name}: {damage[:20] if damage else 'missing'}"):
                (first.folder / name).unlink()
                if damage is not None:
                    (first.folder / name).write_bytes(damage)
                assert not prepared(data, cut=TRAINED).from_cache
                assert (first.folder / name).read_bytes() == whole
                assert entries(data) == [first.folder]


def test_the_process_that_finishes_second_uses_the_entry_of_the_first(data):
    def overtaken(texts: Sequence[str]) -> list[list[int]]:
        prepared(data)
        return encode(texts)

    entry = prepared(data, encode=overtaken)
    assert entry.from_cache and entries(data) == [entry.folder]


def prepare_in_a_process(path: str) -> tuple[str, int]:
    entry = prepared(Path(path))
    return str(entry.folder), entry.counts.train_rows


@pytest.mark.full
def test_two_processes_that_prepare_at_once_both_succeed(data):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        results = pool.map(prepare_in_a_process, [str(data)] * 4, chunksize=1)
    assert len(results) == 4 and len(set(results)) == 1


def test_a_source_that_changes_while_it_is_read_is_refused(data):
    held_out = write(data.parent / "eval.jsonl", 3)

    def meddle(texts: Sequence[str]) -> list[list[int]]:
        os.utime(held_out, ns=(1, 1))
        return encode(texts)

    with pytest.raises(DataError, match=r"eval.jsonl .*changed while it was read"):
        prepared(data, held_out, encode=meddle)
    assert entries(data) == []
    hashed, reader = data_at(data, text_column="text"), TextReader(encode, eos_id=1, vocabulary=99)
    assert find_entry(hashed, CUT, data.parent / "cache", None) is None
    write(data, 31)
    with pytest.raises(DataError, match="changed while it was read"):
        prepare(hashed, reader, CUT, data.parent / "cache")
    assert entries(data) == [] and prepared(data).counts.documents_read == 31


class Cancelled(Exception):
    """Raised by the progress callback."""


def test_an_exception_of_the_progress_callback_leaves_nothing_behind(data, monkeypatch, subtests):
    monkeypatch.setattr("tui_trainer.data.progress.REPORT_SECONDS", 0)
    for stage, cut in (("reading the data", CUT), ("training the tokenizer", TRAINED), ("tokenising", CUT)):
        with subtests.test(stage):

            def cancel(current: str, *_: object, stage: str = stage) -> None:
                if current == stage:
                    raise Cancelled

            with pytest.raises(Cancelled):
                prepared(data, progress=cancel, cut=cut)
            assert entries(data) == []


def test_folders_of_a_killed_process_are_removed_after_a_day(data):
    for name, age_seconds in (("old", 2 * cache.ABANDONED_SECONDS), ("new", 0)):
        folder = data.parent / "cache" / f"{cache.PARTIAL_PREFIX}{name}"
        folder.mkdir(parents=True)
        os.utime(folder, (data.stat().st_mtime - age_seconds,) * 2)
    prepared(data)
    assert [path.name for path in entries(data) if path.name.startswith(".")] == [f"{cache.PARTIAL_PREFIX}new"]


def test_data_found_again_has_the_names_of_now(tmp_path):
    def made(folder: str) -> PreparedData:
        rows, held_out = (tmp_path / folder / name for name in ("rows", "held"))
        reader = TextReader(encode, eos_id=1, vocabulary=99)
        return prepare(data_at(rows, eval_paths=[held_out], text_column="text"), reader, CUT, tmp_path / "cache")

    for name in ("rows", "held"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        write(tmp_path / "mine" / name / "a.jsonl", 30)
        write(tmp_path / "mine" / name / "b.jsonl", 20)
    before = made("mine")
    (tmp_path / "mine").rename(tmp_path / "theirs")
    after = made("theirs")
    assert (before.from_cache, after.from_cache) == (False, True)
    assert after.source == before.source.replace("/mine/", "/theirs/") != before.source


def test_a_cache_that_cannot_be_written_is_reported(data):
    with pytest.raises(
        DataError, match=r"could not write the prepared data.*; set TUI_TRAINER_HOME to a writable folder"
    ):
        prepared(data, folder=data / "cache")
