"""Text becomes a stream of tokens that is cut into rows on disk."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import pickle
import random
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.data.readers import data_at
from tui_trainer.data.batching.collate import IGNORE, collate
from tui_trainer.data.preparing.byte_bpe import EOS_ID
from tui_trainer.data.preparing.cache import MOST_STORED_LENGTHS, PreparedData, RowSettings, quantiles
from tui_trainer.data.preparing.prepare import prepare
from tui_trainer.data.preparing.processes import useful_process_count
from tui_trainer.data.preparing.token_rows import BATCH_ROWS, INPUT_IDS, DocumentWriter, Rows, StreamWriter
from tui_trainer.data.preparing.tokenizing import CharacterReader
from tui_trainer.errors import DataError
from tui_trainer.units import GIB, MIB

CUT = RowSettings(rows="stream", max_length=16, eval_fraction=0.2, seed=42, tokenizer="characters")


def story(seed: int) -> str:
    return "".join(random.Random(seed).choices("abcdefgh \n", k=120)) + chr(0x4E00 + seed)


@pytest.fixture
def data(tmp_path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"text": story(seed)}) + "\n" for seed in range(30)))
    return path


def prepared(data: Path, **changes) -> PreparedData:
    return prepare(data_at(data), CharacterReader(), replace(CUT, **changes), data.parent / "cache")


def stream(path: Path) -> list[int]:
    """Join the rows again that a stream of tokens was cut into."""
    rows = Rows(path)
    tokens = rows.row(0).tolist()
    for index in range(1, len(rows)):
        row = rows.row(index).tolist()
        assert row[0] == tokens[-1]
        tokens += row[1:]
    return tokens


def documents_of(tokens: list[int], entry: PreparedData) -> list[str]:
    tokenizer = Tokenizer.from_file(str(entry.tokenizer_path))
    ends = [position for position, token in enumerate(tokens) if token == EOS_ID]
    starts = [0, *(end + 1 for end in ends)]
    assert ends[-1] == len(tokens) - 1
    return [tokenizer.decode(tokens[start:end]) for start, end in zip(starts, ends, strict=False)]


def test_each_document_is_on_one_side_once(data):
    entry = prepared(data)
    train = documents_of(stream(entry.train_path), entry)
    assert entry.eval_path
    held_out = stream(entry.eval_path)
    assert len(train) + held_out.count(EOS_ID) == 30
    assert entry.counts.eval_documents == held_out.count(EOS_ID) == 6
    expected = [story(seed) for seed in range(30)]
    assert [text for text in expected if text in train] == train
    # The vocabulary has the characters of the training text alone.
    known = set(Tokenizer.from_file(str(entry.tokenizer_path)).get_vocab())
    assert known == set("".join(train)) | {"<pad>", "<unk>", "<eos>"}
    assert entry.counts.vocabulary == len(known)
    assert entry.counts.unknown_eval_tokens == 6  # each story ends in a character of its own
    assert any("unknown to the tokenizer" in note for note in entry.notes)


TOKENS = [17, 18, 33, 1000, 16 * BATCH_ROWS, 16 * BATCH_ROWS + 1, 16 * BATCH_ROWS + 2, 50_001]


def test_rows_cover_the_stream_and_each_label_once(tmp_path, subtests):
    for tokens in TOKENS:
        for portion in [7, 32 * BATCH_ROWS, 100_000]:
            with subtests.test(tokens=tokens, portion=portion):
                whole = np.arange(tokens, dtype=np.int32)
                with StreamWriter(tmp_path / "rows.arrow", max_length=16) as writer:
                    for start in range(0, tokens, portion):
                        part = whole[start : start + portion]
                        writer.add({INPUT_IDS: (part, np.array([len(part)]))})
                rows = Rows(tmp_path / "rows.arrow")
                found = [rows.row(index) for index in range(len(rows))]
                assert len(rows) == writer.row_count == -(-(tokens - 1) // 16)
                assert np.concatenate([row[1:] for row in found]).tolist() == list(range(1, tokens))
                for index, row in enumerate(found):
                    assert row.tolist() == whole[16 * index : 16 * index + 17].tolist()
                assert rows.lengths.tolist() == [len(row) for row in found]
                assert rows.lengths.min() >= 2


def test_chosen_rows_are_joined_to_the_stream_with_its_labels(data):
    path = prepared(data).train_path
    rows, whole = Rows(path), stream(path)
    tokens, is_label = rows.stream(range(len(rows)))
    assert tokens.tolist() == whole and is_label.tolist() == [False] + [True] * (len(whole) - 1)
    # Row 2 is left out: the first token of row 3 is not a label.
    tokens, is_label = rows.stream([0, 1, 3])
    assert tokens.tolist() == whole[:33] + whole[48:65]
    assert np.flatnonzero(~is_label).tolist() == [0, 33]


def test_rows_are_views_into_the_file_and_can_be_pickled(data, tmp_path):
    rows = Rows(prepared(data).train_path)
    row = rows.row(3)
    assert row.dtype == np.int32
    assert row.ctypes.data == rows.row(3).ctypes.data
    assert not row.flags.owndata and not row.flags.writeable
    assert pickle.loads(pickle.dumps(rows)).row(3).tolist() == row.tolist()
    with pytest.raises(IndexError):
        rows.row(len(rows))
    # A damaged file of rows is reported.
    (tmp_path / "rows.arrow").write_bytes(b"nonsense" * 10)
    with pytest.raises(DataError, match="cannot be read"):
        Rows(tmp_path / "rows.arrow")


def test_too_little_text_is_reported_with_both_numbers(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 50)
    with pytest.raises(DataError, match=r"41 tokens, fewer than one row of 65 .*; add more text$"):
        prepared(tmp_path / "a.txt", max_length=64)
    (tmp_path / "a.txt").write_text("x" * 250)
    with pytest.raises(DataError, match=r"fewer than one row of 513 .*or lower data.max_length to about 20"):
        prepared(tmp_path / "a.txt", max_length=512)
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_character_limit_takes_the_first_characters_and_is_noted(data):
    entry = prepared(data, max_chars=1000, eval_fraction=0)
    assert entry.counts.train_characters == 1000
    assert "".join(documents_of(stream(entry.train_path), entry)) == "".join(map(story, range(9)))[:1000]
    assert any("the first 1,000 characters" in note for note in entry.notes)
    # An evaluation share of zero holds nothing out.
    assert entry.eval_path is None
    assert not (entry.folder / "eval.arrow").exists()
    assert entry.counts.eval_rows == entry.counts.eval_documents == 0


def test_the_tail_of_a_single_document_is_held_out(tmp_path):
    text = "".join(f"line {number}\n" for number in range(200))
    (tmp_path / "a.txt").write_text(text)
    entry = prepared(tmp_path / "a.txt")
    assert entry.eval_path
    sides = [documents_of(stream(path), entry) for path in (entry.train_path, entry.eval_path)]
    assert [len(side) for side in sides] == [1, 1]
    assert sides[0][0] + sides[1][0] == text
    assert sides[1][0].startswith("line ")
    assert any("are held out" in note for note in entry.notes)


def test_a_stream_of_several_sources_follows_weights_dedup_and_skip_bad_rows(tmp_path):
    stories = [story(seed) for seed in range(12)]
    stories[2] = " ".join(f"w\u00f6rd{number}" for number in range(20_000))
    repeat = unicodedata.normalize("NFD", stories[2].replace(" ", "\n "))
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    rows = [json.dumps({"text": text}) for text in [*stories[:6], repeat]]
    first.write_text("\n".join([*rows, '{"text": 3}', '{"body": "x"}', ""]))
    second.write_text("".join(json.dumps({"text": text}) + "\n" for text in [stories[0], *stories[6:]]))
    data, cut = data_at(first, second), replace(CUT, eval_fraction=0)
    with pytest.raises(DataError, match=r"a\.jsonl, line 8: the column 'text' is a number(.|\n)*a\.jsonl, line 9: "):
        prepare(data, CharacterReader(), cut, tmp_path / "cache")
    cut = replace(cut, weights=(2.0, 0.5), dedup=True, skip_bad_rows=True)
    entry = prepare(data, CharacterReader(), cut, tmp_path / "cache")
    found = documents_of(stream(entry.train_path), entry)
    assert found[:12] == [text for text in stories[:6] for _ in range(2)]
    assert len(found[12:]) == 3 and set(found[12:]) < set(stories[6:])
    counts = entry.counts
    assert (counts.documents_read, counts.bad_rows, counts.repeated_rows, counts.train_documents) == (16, 2, 2, 15)
    assert any(note.endswith("7 rows, 12 per training epoch (data.weights 2)") for note in entry.notes)
    limited = prepare(data, CharacterReader(), replace(cut, max_rows=3, weights=()), tmp_path / "cache")
    assert documents_of(stream(limited.train_path), limited) == [*stories[:3], *stories[6:8]]


def write_blocks(path: Path, *, count: int = 20_000, bad: bool = False) -> Path:
    """Write rows of more than one block: repeats, blank lines, blank texts, texts that fill chunks, `bad` ones."""
    lines = []
    for seed in range(count):
        text = {7: f"{story(seed - 7)} <eos>", 8: " ", 9: "long " * 50_000}.get(seed % 5000, f"{story(seed)} <eos>")
        lines.append(json.dumps({"text": text}, ensure_ascii=seed % 2 == 0))
        lines += [""] * (seed % 300 == 0)
        if bad:
            lines += ['{"text": 3}'] * (seed % 900 == 5) + ['{"body": "x"}'] * (seed % 700 == 3)
            lines += ['{"text": '] * (seed in (30, 12_345)) + ["[1]"] * (seed % 4000 == 50)
    path.write_text("\n".join(lines))
    return path


def prepared_by(processes: int, path: Path, cut: RowSettings = CUT) -> PreparedData:
    folder = path.parent / f"by-{processes}"
    return prepare(data_at(path), CharacterReader(), cut, folder, processes=processes)


def files_of(entry: PreparedData) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in entry.folder.iterdir()}


def test_two_processes_prepare_the_same_files_as_one(tmp_path):
    path, cut, processes = write_blocks(tmp_path / "a.jsonl", count=7500), replace(CUT, dedup=True), set[int]()

    def watch(*_: object) -> None:
        processes.add(len(multiprocessing.active_children()))

    one, two = (
        prepare(data_at(path), CharacterReader(), cut, tmp_path / str(count), watch, processes=count)
        for count in (1, 2)
    )
    assert processes == {0, 2}
    assert not two.from_cache and two.counts == one.counts
    assert files_of(two) == files_of(one)
    assert one.counts.repeated_rows == 3


@pytest.mark.full
def test_two_processes_report_the_same_bad_rows_as_one(tmp_path):
    path = write_blocks(tmp_path / "a.jsonl", bad=True)
    skipping = replace(CUT, skip_bad_rows=True)
    one = prepared_by(1, path, skipping)
    with pytest.raises(DataError) as alone:
        prepared_by(1, path)
    assert files_of(prepared_by(2, path, skipping)) == files_of(one)
    with pytest.raises(DataError) as together:
        prepared_by(2, path)
    assert together.value.problems == alone.value.problems
    assert len(alone.value.problems) == 4 and "(also 12426)" in str(alone.value)


@pytest.mark.full
def test_limits_and_other_formats_give_the_same_files_with_two_processes(tmp_path, subtests):
    for number, change in enumerate([{"max_rows": 6000}, {"max_chars": 600_000}, {"gz": True}, {"json": True}]):
        with subtests.test(change=change):
            (folder := tmp_path / str(number)).mkdir()
            path = write_blocks(folder / "a.jsonl", count=8000)
            if change == {"gz": True}:
                change, noise = {}, random.Random(1).randbytes(2_000_000).hex()
                more = json.dumps({"text": noise}).encode()
                path = folder / "a.jsonl.gz"
                path.write_bytes(gzip.compress((folder / "a.jsonl").read_bytes() + b"\n" + more))
            elif change == {"json": True}:
                change, lines = {}, [line for line in path.read_text().splitlines() if line]
                path.write_text("[\n" + ",\n".join(lines) + "]\n")
            one, two = (prepared_by(processes, path, replace(CUT, **change)) for processes in (1, 2))
            assert files_of(two) == files_of(one)


@pytest.mark.full
def test_preparing_with_processes_can_be_cancelled(tmp_path):
    path = write_blocks(tmp_path / "a.jsonl", count=8000)
    reports = []

    def stop(what: str, *_: object) -> None:
        reports.append(what)
        if what == "tokenising":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(data_at(path), CharacterReader(), CUT, tmp_path / "cache", stop, processes=2)
    assert "reading the data" in reports
    assert list((tmp_path / "cache").iterdir()) == []
    assert multiprocessing.active_children() == []


PROCESS_COUNTS = [
    (MIB, 64, 64 * GIB, 1), (40 * MIB, 64, 64 * GIB, 2), (GIB, 2, 64 * GIB, 2), (100 * GIB, 256, 256 * GIB, 32),
    (GIB, 64, 2 * GIB, 4), (GIB, 8, 0, 1),
]  # fmt: skip


def test_the_number_of_processes_follows_data_cores_and_memory(subtests):
    for data_bytes, cores, available_bytes, expected in PROCESS_COUNTS:
        with subtests.test(data_bytes=data_bytes, cores=cores, available_bytes=available_bytes):
            assert useful_process_count(data_bytes, cores, available_bytes) == expected


def test_text_that_spells_a_special_token_stays_text(tmp_path):
    text = "say <eos> and <unk>\n" * 20
    (tmp_path / "a.txt").write_text(text)
    entry = prepared(tmp_path / "a.txt", eval_fraction=0)
    assert documents_of(stream(entry.train_path), entry) == [text]


def test_progress_ends_at_the_number_of_characters(data):
    reports: list[tuple[str, float, float | None, str]] = []
    prepare(data_at(data), CharacterReader(), CUT, data.parent / "c", lambda *report: reports.append(report))
    assert reports[-1] == ("tokenising", 30 * 121, 30 * 121, "characters")
    trained = [report for report in reports if report[0] == "training the tokenizer"]
    assert trained[-1] == ("training the tokenizer", 24 * 121, 24 * 121, "characters")


def test_labels_are_the_inputs_shifted_by_one_and_padding_has_none():
    rows = [np.array(row, dtype=np.int32) for row in ([5, 6, 7, 8], [9, 3])]
    batch = collate(rows, pad_id=0)
    assert batch.input_ids.tolist() == [[5, 6, 7], [9, 0, 0]]
    assert batch.labels.tolist() == [[6, 7, 8], [3, IGNORE, IGNORE]]
    assert batch.input_ids.dtype == batch.labels.dtype == np.int64
    assert batch.token_count == (batch.labels != IGNORE).sum() == 4


def test_a_writer_takes_many_documents_at_once(tmp_path, subtests):
    for number, many in enumerate([1, BATCH_ROWS - 1, BATCH_ROWS, 2 * BATCH_ROWS + 1]):
        with subtests.test(many=many):
            (folder := tmp_path / str(number)).mkdir()
            lengths = np.full(many, 12)
            with DocumentWriter(folder / "rows.arrow", max_length=8) as writer:
                writer.add({INPUT_IDS: (np.arange(12 * many, dtype=np.int32), lengths)})
                writer.add({INPUT_IDS: (np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64))})
            found = Rows(folder / "rows.arrow")
            rows = [found.row(index).tolist() for index in range(len(found))]
            starts = range(0, 12 * many, 12)
            assert rows == [list(range(s + a, s + b)) for s in starts for a, b in ((0, 9), (8, 12))]
            assert (writer.cut_documents, writer.pieces, writer.row_count, writer.longest_row) == (
                many,
                2 * many,
                2 * many,
                9,
            )


def test_lengths_are_kept_as_a_sample_of_all():
    assert quantiles([]) == ()
    assert quantiles([5, 3, 4]) == (3, 4, 5)
    kept = quantiles(np.arange(100_000))
    assert len(kept) == MOST_STORED_LENGTHS
    assert np.mean(kept) == pytest.approx(50_000, rel=0.001)
