"""From text to rows on disk, once."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import pickle
import random
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from tokenizers import Tokenizer

from tui_trainer.data.batching.collate import IGNORE, collate
from tui_trainer.data.columns.reader import Example
from tui_trainer.data.preparing import cache
from tui_trainer.data.preparing.byte_bpe import EOS_ID
from tui_trainer.data.preparing.cache import Cut, PreparedData, find_entry
from tui_trainer.data.preparing.estimate import DataEstimate, estimate
from tui_trainer.data.preparing.prepare import _Preparation, prepare
from tui_trainer.data.preparing.processes import worth_processes
from tui_trainer.data.preparing.row_selection import (
    CHUNK_CHARACTERS,
    CHUNK_ROWS,
    Spool,
    SpooledRows,
    Surveyor,
    chunks_of,
    text_hash,
)
from tui_trainer.data.preparing.token_rows import BATCH_ROWS, COLUMN, Rows, StreamWriter
from tui_trainer.data.preparing.tokenizing import CharacterReader
from tui_trainer.data.sources.source import open_source, open_sources
from tui_trainer.errors import DataError
from tui_trainer.units import GIB, MIB

CUT = Cut(rows="stream", max_length=16, eval_fraction=0.2, seed=42, tokenizer="characters")


def story(seed: int) -> str:
    return "".join(random.Random(seed).choices("abcdefgh \n", k=120)) + chr(0x4E00 + seed)


@pytest.fixture
def data(tmp_path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"text": story(seed), "body": "b" * 99}) + "\n" for seed in range(30)))
    return path


def prepared(data: Path | str, *, text_column: str = "auto", cache_dir: Path | None = None, **changes) -> PreparedData:
    source = open_source(str(data), text_column)
    place = cache_dir or Path(data).parent / "cache"
    return prepare([source], CharacterReader(), replace(CUT, **changes), place)


def guessed(path: Path | str, **changes) -> DataEstimate:
    cut = replace(CUT, **changes)
    return estimate([open_source(str(path))], CharacterReader(), cut, lambda texts: 1.0, frame_tokens=1)


def stream(path: Path) -> list[int]:
    """The tokens that were cut into rows, put together again."""
    rows = Rows(path)
    tokens = rows.row(0).tolist()
    for index in range(1, len(rows)):
        row = rows.row(index).tolist()
        assert row[0] == tokens[-1]
        tokens += row[1:]
    return tokens


def documents_of(tokens: list[int], entry: PreparedData) -> list[str]:
    tokenizer = Tokenizer.from_file(str(entry.tokenizer_path))
    ends = [place for place, token in enumerate(tokens) if token == EOS_ID]
    starts = [0, *(end + 1 for end in ends)]
    assert ends[-1] == len(tokens) - 1
    return [tokenizer.decode(tokens[start:end]) for start, end in zip(starts, ends, strict=False)]


def test_both_sides_together_are_the_documents_each_once(data):
    entry = prepared(data)
    train = documents_of(stream(entry.train_path), entry)
    assert entry.eval_path
    held_out = stream(entry.eval_path)
    assert len(train) + held_out.count(EOS_ID) == 30
    assert entry.counts.eval_documents == held_out.count(EOS_ID) == 6
    expected = [story(seed) for seed in range(30)]
    assert [text for text in expected if text in train] == train


def test_the_vocabulary_has_no_character_of_the_held_out_text_alone(data):
    entry = prepared(data)
    known = set(Tokenizer.from_file(str(entry.tokenizer_path)).get_vocab())
    train = "".join(documents_of(stream(entry.train_path), entry))
    assert known == set(train) | {"<pad>", "<unk>", "<eos>"}
    assert entry.counts.vocabulary == len(known)
    assert entry.counts.unknown_eval_tokens == 6  # each story ends in a character of its own
    assert any("<unk>" in note for note in entry.notes)


@pytest.mark.parametrize(
    "tokens", [17, 18, 33, 1000, 16 * BATCH_ROWS, 16 * BATCH_ROWS + 1, 16 * BATCH_ROWS + 2, 50_001]
)
@pytest.mark.parametrize("portion", [7, 32 * BATCH_ROWS, 100_000])
def test_rows_cover_the_stream_and_each_label_once(tmp_path, tokens, portion):
    whole = np.arange(tokens, dtype=np.int32)
    with StreamWriter(tmp_path / "rows.arrow", max_length=16) as writer:
        for start in range(0, tokens, portion):
            part = whole[start : start + portion]
            writer.add({COLUMN: (part, np.array([len(part)]))})
    rows = Rows(tmp_path / "rows.arrow")
    found = [rows.row(index) for index in range(len(rows))]
    assert len(rows) == writer.row_count == -(-(tokens - 1) // 16)
    assert np.concatenate([row[1:] for row in found]).tolist() == list(range(1, tokens))
    assert all(row.tolist() == whole[16 * index : 16 * index + 17].tolist() for index, row in enumerate(found))
    assert rows.lengths.tolist() == [len(row) for row in found]
    assert rows.lengths.min() >= 2


def mapped_file(address: int) -> str:
    """The file behind an address of this process (Linux)."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return line.split(maxsplit=5)[5]
    return ""


def test_rows_are_views_into_the_file_and_travel_to_other_processes(data):
    rows = Rows(prepared(data).train_path)
    row = rows.row(3)
    assert row.dtype == np.int32
    assert row.ctypes.data == rows.row(3).ctypes.data
    assert mapped_file(row.ctypes.data) == str(rows.path)
    assert not row.flags.writeable
    assert pickle.loads(pickle.dumps(rows)).row(3).tolist() == row.tolist()
    with pytest.raises(IndexError):
        rows.row(len(rows))


def test_a_damaged_rows_file_is_one_sentence(tmp_path):
    (tmp_path / "rows.arrow").write_bytes(b"nonsense" * 10)
    with pytest.raises(DataError, match="cannot be read"):
        Rows(tmp_path / "rows.arrow")


def test_a_second_call_reuses_the_first(data, monkeypatch):
    first = prepared(data)
    monkeypatch.setattr(_Preparation, "build", None)
    again = prepared(data)
    assert (first.from_cache, again.from_cache) == (False, True)
    assert again.counts == first.counts
    assert again.notes == first.notes
    assert again.folder == first.folder


def test_lookup_finds_what_was_prepared_and_makes_nothing(data):
    sources, place = [open_source(str(data))], data.parent / "cache"
    assert find_entry(sources, CUT, place, None) is None
    assert not place.exists()
    entry = prepared(data)
    found = find_entry(sources, CUT, place, None)
    assert found is not None
    assert (found.folder, found.counts) == (entry.folder, entry.counts)


@pytest.mark.parametrize(
    "change",
    [{"max_length": 8}, {"eval_fraction": 0.3}, {"seed": 43}, {"max_chars": 2000}, {"text_column": "body"}],
    ids=lambda change: next(iter(change)),
)
def test_another_setting_is_another_entry(data, change):
    first = prepared(data)
    other = prepared(data, **change)
    assert not other.from_cache
    assert other.folder != first.folder


def test_a_new_way_of_preparing_is_another_entry(data, monkeypatch):
    first = prepared(data)
    monkeypatch.setattr(cache, "PREPARATION_VERSION", cache.PREPARATION_VERSION + 1)
    assert prepared(data).folder != first.folder


def test_another_content_is_another_entry(data):
    first = prepared(data)
    data.write_text(data.read_text().replace("a", "A"))
    other = prepared(data)
    assert not other.from_cache
    assert other.fingerprint != first.fingerprint


@pytest.mark.parametrize("name", ["train.arrow", "eval.arrow", "tokenizer.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_damaged_entry_is_made_again(data, name, damage):
    first = prepared(data)
    before = (first.folder / name).read_bytes()
    (first.folder / name).unlink()
    if damage == "short":
        (first.folder / name).write_bytes(before[:-10])
    again = prepared(data)
    assert not again.from_cache
    assert (again.folder / name).read_bytes() == before
    assert [path.name for path in first.folder.parent.iterdir()] == [first.folder.name]


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"format_version": 99}', '{"format_version": 1, "files": []}', "nope"]
)
def test_a_strange_manifest_is_no_entry(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    assert cache.read_entry(tmp_path) is None


def test_whoever_is_second_uses_the_entry_of_the_first(data, monkeypatch):
    real = _Preparation.build

    def overtaken(work, folder):
        monkeypatch.setattr(_Preparation, "build", real)
        prepared(data)
        return real(work, folder)

    monkeypatch.setattr(_Preparation, "build", overtaken)
    entry = prepared(data)
    assert entry.from_cache
    assert [path.name for path in entry.folder.parent.iterdir()] == [entry.folder.name]


def _prepare_in_a_child(path: str) -> tuple[str, int]:
    entry = prepared(Path(path))
    return str(entry.folder), len(Rows(entry.train_path))


def test_two_processes_that_prepare_at_once_both_succeed(data):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        results = pool.map(_prepare_in_a_child, [str(data)] * 4, chunksize=1)
    assert len(results) == 4
    assert len(set(results)) == 1


def test_a_source_that_changes_meanwhile_is_refused(data, monkeypatch):
    real = _Preparation.build

    def meddled(work, folder):
        result = real(work, folder)
        os.utime(data, ns=(1, 1))
        return result

    monkeypatch.setattr(_Preparation, "build", meddled)
    with pytest.raises(DataError, match="changed while it was read"):
        prepared(data)
    assert list((data.parent / "cache").iterdir()) == []


def test_folders_left_by_a_killed_process_are_removed_after_a_day(data):
    place = data.parent / "cache"
    for name, age in (("old", 2 * cache.ABANDONED_SECONDS), ("new", 0)):
        (place / f"{cache.PARTIAL}{name}").mkdir(parents=True)
        moment = (data.stat().st_mtime - age,) * 2
        os.utime(place / f"{cache.PARTIAL}{name}", moment)
    prepared(data)
    assert sorted(path.name for path in place.glob(".*")) == [f"{cache.PARTIAL}new"]


def test_a_cache_that_cannot_be_written_is_one_sentence(data):
    blocker = data.parent / "file"
    blocker.write_text("")
    with pytest.raises(DataError, match=r"cannot be written.*; free space there, or set TUI_TRAINER_HOME"):
        prepared(data, cache_dir=blocker / "cache")


def test_too_little_text_says_both_numbers(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 50)
    with pytest.raises(DataError, match=r"41 tokens, fewer than one row of 65 .*; give more text$"):
        prepared(tmp_path / "a.txt", max_length=64)
    (tmp_path / "a.txt").write_text("x" * 250)
    with pytest.raises(DataError, match=r"fewer than one row of 513 .*or lower data.max_length to 20 or so"):
        prepared(tmp_path / "a.txt", max_length=512)
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_character_limit_takes_the_first_characters_and_says_so(data):
    entry = prepared(data, max_chars=1000, eval_fraction=0)
    assert entry.counts.train_characters == 1000
    assert "".join(documents_of(stream(entry.train_path), entry)) == "".join(map(story, range(9)))[:1000]
    assert any("the first 1,000 characters" in note for note in entry.notes)


def test_a_limit_beyond_the_text_is_not_mentioned(data):
    assert not any("max_chars" in note for note in prepared(data, max_chars=10**9).notes)


def test_without_a_share_nothing_is_held_out(data):
    entry = prepared(data, eval_fraction=0)
    assert entry.eval_path is None
    assert not (entry.folder / "eval.arrow").exists()
    assert entry.counts.eval_rows == entry.counts.eval_documents == 0


def test_blank_documents_are_left_out_and_counted(tmp_path):
    rows = [story(seed) for seed in range(8)] + ["", " \n"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    entry = prepared(tmp_path / "a.jsonl")
    assert entry.counts.train_documents + entry.counts.eval_documents == 8
    assert any(note.startswith("2 documents hold only white space") for note in entry.notes)


def test_one_document_gives_its_tail(tmp_path):
    text = "".join(f"line {number}\n" for number in range(200))
    (tmp_path / "a.txt").write_text(text)
    entry = prepared(tmp_path / "a.txt")
    assert entry.eval_path
    sides = [documents_of(stream(path), entry) for path in (entry.train_path, entry.eval_path)]
    assert [len(side) for side in sides] == [1, 1]
    assert sides[0][0] + sides[1][0] == text
    assert sides[1][0].startswith("line ")
    assert any("are held out" in note for note in entry.notes)


def test_a_stream_of_several_sources_follows_weights_and_leaves_out_repeats_and_bad_rows(tmp_path):
    stories = [story(seed) for seed in range(12)]
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    rows = [json.dumps({"text": text}) for text in [*stories[:6], stories[2]]]
    first.write_text("\n".join([*rows, '{"text": 3}', '{"body": "x"}', ""]))
    second.write_text("".join(json.dumps({"text": text}) + "\n" for text in [stories[0], *stories[6:]]))
    source, cut = open_sources([str(first), str(second)]), replace(CUT, eval_fraction=0)
    with pytest.raises(DataError, match=r"a\.jsonl, line 8: the column 'text' is a number(.|\n)*a\.jsonl, line 9: "):
        prepare([source], CharacterReader(), cut, tmp_path / "cache")
    cut = replace(cut, weights=(2.0, 0.5), dedup=True, skip_bad_rows=True)
    entry = prepare([source], CharacterReader(), cut, tmp_path / "cache")
    found = documents_of(stream(entry.train_path), entry)
    assert found[:12] == [text for text in stories[:6] for _ in range(2)]
    assert len(found[12:]) == 3 and set(found[12:]) < set(stories[6:])
    counts = entry.counts
    assert (counts.documents_read, counts.bad_rows, counts.repeated_rows, counts.train_documents) == (16, 2, 2, 15)
    assert any(note.endswith("7 rows, 12 in an epoch of training (data.weights 2)") for note in entry.notes)
    limited = prepare([source], CharacterReader(), replace(cut, max_rows=3, weights=()), tmp_path / "cache")
    assert documents_of(stream(limited.train_path), limited) == [*stories[:3], *stories[6:8]]


def rows_of_several_blocks(path: Path, *, bad: bool = False) -> Path:
    """Rows of more than 2 MiB: repeats, blank lines, blank texts, texts that fill chunks, `bad` ones."""
    lines = []
    for seed in range(20_000):
        text = {7: f"{story(seed - 7)} <eos>", 8: " ", 9: "long " * 50_000}.get(seed % 5000, f"{story(seed)} <eos>")
        lines.append(json.dumps({"text": text}, ensure_ascii=seed % 2 == 0))
        lines += [""] * (seed % 300 == 0)
        if bad:
            lines += ['{"text": 3}'] * (seed % 900 == 5) + ['{"body": "x"}'] * (seed % 700 == 3)
            lines += ['{"text": '] * (seed in (30, 12_345)) + ["[1]"] * (seed % 4000 == 50)
    path.write_text("\n".join(lines))
    return path


def prepared_by(processes: int, path: Path, cut: Cut = CUT, reader: Any = None) -> PreparedData:
    place = path.parent / f"by-{processes}"
    return prepare([open_source(str(path))], reader or CharacterReader(), cut, place, processes=processes)


def files_of(entry: PreparedData) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in entry.folder.iterdir()}


def test_two_processes_read_and_encode_a_stream_as_one_does(tmp_path, monkeypatch):
    path = rows_of_several_blocks(tmp_path / "a.jsonl")
    cut = replace(CUT, dedup=True)
    one = prepared_by(1, path, cut)
    monkeypatch.setattr(Surveyor, "_documents", None)  # which reads here
    two = prepared_by(2, path, cut)
    assert not two.from_cache and two.counts == one.counts
    assert files_of(two) == files_of(one)
    assert one.counts.repeated_rows > 4


def test_two_processes_name_rows_that_cannot_be_used_as_one_does(tmp_path, monkeypatch):
    path = rows_of_several_blocks(tmp_path / "a.jsonl", bad=True)
    skipping = replace(CUT, skip_bad_rows=True)
    one = prepared_by(1, path, skipping)
    with pytest.raises(DataError) as alone:
        prepared_by(1, path)
    monkeypatch.setattr(Surveyor, "_documents", None)
    assert files_of(prepared_by(2, path, skipping)) == files_of(one)
    with pytest.raises(DataError) as together:
        prepared_by(2, path)
    assert together.value.problems == alone.value.problems
    assert len(alone.value.problems) == 4 and "(2 times, also 12426)" in str(alone.value)


@pytest.mark.parametrize("change", [{"max_rows": 15_000}, {"max_chars": 1_500_000}, {"gz": True}, {"json": True}])
def test_what_lines_alone_do_not_tell_is_read_by_one_process(tmp_path, change):
    path = rows_of_several_blocks(tmp_path / "a.jsonl")
    if change == {"gz": True}:
        change, noise = {}, random.Random(1).randbytes(2_000_000).hex()
        more = json.dumps({"text": noise}).encode()
        path = tmp_path / "a.jsonl.gz"
        path.write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes() + b"\n" + more))
    elif change == {"json": True}:
        change, lines = {}, [line for line in path.read_text().splitlines() if line]
        path.write_text("[\n" + ",\n".join(lines) + "]\n")
    one, two = (prepared_by(processes, path, replace(CUT, **change)) for processes in (1, 2))
    assert files_of(two) == files_of(one)


def test_preparing_with_processes_can_be_given_up(tmp_path):
    path = rows_of_several_blocks(tmp_path / "a.jsonl")
    told = []

    def stop(what: str, *_: object) -> None:
        told.append(what)
        if what == "tokenising":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare([open_source(str(path))], CharacterReader(), CUT, tmp_path / "cache", stop, processes=2)
    assert "reading the data" in told
    assert list((tmp_path / "cache").iterdir()) == []
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("longest", [10, 900, 250_000, 3_000_000])
def test_chunks_are_cut_alike_however_rows_were_spooled(tmp_path, longest):
    draw = random.Random(longest)
    examples = [
        Example(f"{number} ".ljust(draw.randint(1, longest), "x"), number) for number in range(2600)[: 10**8 // longest]
    ]
    expected: list[list[int]] = [[]]
    characters = 0
    for example in examples:
        if len(expected[-1]) == CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
            expected.append([])
            characters = 0
        expected[-1].append(example.content)
        characters += len(example.text)
    spooled, left = list[SpooledRows](), examples
    while left:
        with Spool(tmp_path / str(draw.randint(0, 1))) as spool:
            for example in (some := left[: draw.randint(1, 1500)]):
                spool.add(example)
        spooled, left = spooled + spool.written, left[len(some) :]
    chunks = chunks_of(spooled, np.array([len(example.text) for example in examples]))
    assert [[example.content for example in chunk.examples()] for chunk in chunks] == expected


@pytest.mark.parametrize(
    ("data_bytes", "cores", "available_bytes", "expected"),
    [(MIB, 64, 64 * GIB, 1), (40 * MIB, 64, 64 * GIB, 2), (GIB, 2, 64 * GIB, 2), (100 * GIB, 256, 256 * GIB, 32),
     (GIB, 64, 2 * GIB, 4), (GIB, 8, 0, 1)],
)  # fmt: skip
def test_processes_are_as_many_as_data_cores_and_memory_are_worth(data_bytes, cores, available_bytes, expected):
    assert worth_processes(data_bytes, cores, available_bytes) == expected


def test_repeats_of_a_long_text_are_found_however_its_white_space_lies(tmp_path):
    words = [f"wörd{number}" for number in range(40_000)]
    texts = [" ".join(words), "\n ".join(words), unicodedata.normalize("NFD", " ".join(words)), " ".join(words[1:])]
    assert [text_hash(text) for text in texts[1:3]] == [text_hash(texts[0])] * 2
    assert text_hash(texts[3]) != text_hash(texts[0])
    whole = " ".join(words).encode()
    assert text_hash(f" {texts[0]}\n") == xxhash.xxh3_64_intdigest(whole)


def test_text_that_spells_a_special_token_stays_text(tmp_path):
    text = "say <eos> and <unk>\n" * 20
    (tmp_path / "a.txt").write_text(text)
    entry = prepared(tmp_path / "a.txt", eval_fraction=0)
    assert documents_of(stream(entry.train_path), entry) == [text]


def test_tokenising_tells_how_far_it_is(data):
    told: list[tuple[str, float, float | None, str]] = []
    prepare([open_source(str(data))], CharacterReader(), CUT, data.parent / "c", lambda *report: told.append(report))
    assert told[-1] == ("tokenising", 30 * 121, 30 * 121, "characters")
    trained = [report for report in told if report[0] == "training the tokenizer"]
    assert trained[-1] == ("training the tokenizer", 24 * 121, 24 * 121, "characters")


def test_an_estimate_is_near_the_counts(tmp_path, data):
    path = tmp_path / "more.jsonl"
    path.write_bytes(data.read_bytes() * 40)
    guess = guessed(path)
    counts = prepared(path).counts
    assert guess.tokens == pytest.approx(counts.train_tokens, rel=0.02)
    assert guess.eval_tokens == pytest.approx(counts.eval_tokens, rel=0.05)
    assert guess.rows == pytest.approx(counts.train_rows, rel=0.02)
    assert guess.vocabulary == pytest.approx(counts.vocabulary, abs=8)


def test_an_estimate_leaves_out_the_row_that_was_not_read_whole(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "%s"}\n' % ("x" * 40_000) * 20)
    guess = guessed(tmp_path / "a.jsonl", eval_fraction=0)
    assert guess.tokens == pytest.approx(20 * 40_001, rel=0.001)


def test_an_estimate_of_a_gz_says_what_it_assumed(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(random.Random(1).randbytes(20_000).hex().encode()))
    guess = guessed(path, eval_fraction=0)
    assert guess.tokens == pytest.approx(3 * path.stat().st_size, abs=2)
    assert "taken to unpack to 3 times" in guess.reason


def test_an_estimate_does_not_stumble_over_broken_files(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'oops\n[1]\n{"text": 5}\n\xff\n')
    (tmp_path / "b.txt.gz").write_bytes(b"no gzip")
    (tmp_path / "c.txt").write_bytes(b"\xff" * 100)
    assert guessed(tmp_path, eval_fraction=0.1).tokens < 200


def test_an_estimate_follows_the_character_limit(data):
    guess = guessed(data, eval_fraction=0.5, max_chars=1000)
    assert guess.tokens + guess.eval_tokens == pytest.approx(1008, abs=5)


def test_the_estimate_of_a_sample_counts_its_characters(tmp_path):
    guess = guessed("sample:python-reference", max_length=256, eval_fraction=0.1)
    counts = prepared("sample:python-reference", cache_dir=tmp_path, max_length=256, eval_fraction=0.1).counts
    assert guess.tokens + guess.eval_tokens == counts.train_tokens + counts.eval_tokens
    assert guess.rows == pytest.approx(counts.train_rows, rel=0.02)


def test_labels_are_the_inputs_shifted_by_one_and_padding_is_ignored():
    rows = [np.array(row, dtype=np.int32) for row in ([5, 6, 7, 8], [9, 3])]
    batch = collate(rows, pad_id=0)
    assert batch.input_ids.tolist() == [[5, 6, 7], [9, 0, 0]]
    assert batch.labels.tolist() == [[6, 7, 8], [3, IGNORE, IGNORE]]
    assert batch.input_ids.dtype == batch.labels.dtype == np.int64
    assert batch.tokens == (batch.labels != IGNORE).sum() == 4
