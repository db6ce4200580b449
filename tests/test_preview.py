"""`tui-trainer preview`: the rows as the model gets them, as text and as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from tests.previews import BAD_ROWS, BOS, EOS, PREVIEW, document, piece, scratch, table
from tests.tiny_models import save_tiny_model
from tui_trainer.cli import main
from tui_trainer.cli.machine import preview_lines
from tui_trainer.config.load import Request
from tui_trainer.data.batching.row_order import RowOrder
from tui_trainer.data.preview import ShownSample
from tui_trainer.launching.open_run import load_config
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.launching.preview import (
    ASCII_SIGNS,
    NO_SIGNS,
    UNICODE_SIGNS,
    make_preview,
    sample_lines,
    summary_lines,
)

AWKWARD = [
    "The cat sat.",
    "caf\u00e9 \u6f22\u5b57 \U0001f600",
    "line one\nline two\ttab",
    "\x1b[31mred\x1b[0m \u202e",
    "a",
    "<eos> in a text, [brackets] " + "and many words " * 20,
]
PRINTED = (
    "  2 documents, 39 tokens, 25 trained (64%), +37 padding",
    "  document 1: row 812, 17 tokens, 4 trained (24%), whole",
    "    ⟨<bos>⟩⟦漢字 café ␛[31mred    end <eos>⟨<eos>⟩⟧",
    "read      1,010 rows: 12 bad, 7 duplicate, 3 leaked, 40 truncated, 8 without a trained token",
    "lengths   median 40, 90 % up to 96, longest 128 tokens",
    "            5 to  45  ████████████████████████ 600",
    "  conversations.jsonl, line 8: the row has no column 'messages'; columns found: prompt",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("models") / "llama", "llama"))


# The printed lines


def test_samples_counts_and_lengths_are_printed_and_colours_replace_the_brackets():
    whole = "\n".join(preview_lines(PREVIEW, UNICODE_SIGNS, 100, in_colour=False))
    assert set(PRINTED) <= set(whole.splitlines())
    printed = "\n".join(preview_lines(PREVIEW, NO_SIGNS, 100, in_colour=True))
    assert "\x1b[32m An animal.\x1b[0m\x1b[36m<eos>\x1b[0m" in printed and "\u27e6" not in printed
    plain = re.sub("\x1b\\[[0-9]*m", "", printed)
    assert plain == re.sub("[\u27e6\u27e7\u27e8\u27e9]", "", whole), "the same words"
    assert "\x1b[31m" not in printed, "a colour that stands in the data is not passed on"


def test_ascii_signs_are_ascii():
    printed = "\n".join(preview_lines(PREVIEW, ASCII_SIGNS, 100, in_colour=False)).replace("\u6f22\u5b57 caf\u00e9", "")
    assert "[[ An animal.{<eos>}]]" in printed and printed.replace("\u241b", "").isascii()


def test_lines_are_no_wider_than_the_terminal():
    long = document(1, BOS, piece("\u6f22\u5b57 " * 90, 180, trained=True), piece("word" * 100, 100), EOS)
    sample = ShownSample(step=1, forward_pass=1, row=1, documents=(long,), padding=0)
    for width in (40, 41, 57, 100):
        shown = [line for line in sample_lines(sample, 1, 1, UNICODE_SIGNS, width)][3:]
        lines = ["".join(part for part, _ in line) for line in shown]
        assert max(map(cell_len, lines)) <= width and len(lines) >= 10
        text = "".join(line[4:] for line in lines)
        assert text.count("\u6f22\u5b57 ") == 90 and text.count("word") == 100


def test_middle_of_a_long_text_is_left_out():
    parts = (BOS, piece("b" * 1000, 250), piece("x" * 5000, 1250, trained=True), piece("e" * 1000, 250), EOS)
    sample = ShownSample(step=1, forward_pass=1, row=1, documents=(document(1, *parts),), padding=0)
    text = "".join(part for line in sample_lines(sample, 1, 1, UNICODE_SIGNS, 10_000, 4000) for part, _ in line)
    assert text.count("b") - 1 == 1000 and text.count("x") == 2000 - 10 and "characters not shown" in text
    assert text.endswith("\u27e8<eos>\u27e9\u27e7") and "e" * 1000 in text


def test_tags_are_printed_below_their_words():
    words = (("Anna", "B-PER"), ("lives", "O"), ("\u6f22\u5b57", "B-LOC"))
    pieces = [piece(text, 1, trained=True, tag=tag) for text, tag in words]
    sample = ShownSample(step=1, forward_pass=1, row=1, documents=(document(1, BOS, *pieces),), padding=0)
    lines = ["".join(part for part, _ in line) for line in sample_lines(sample, 1, 1, UNICODE_SIGNS, 60)]
    assert lines[-2:] == ["    \u27e8<bos>\u27e9 Anna  lives \u6f22\u5b57  ", "            B-PER O     B-LOC "]
    narrow = ["".join(part for part, _ in line) for line in sample_lines(sample, 1, 1, UNICODE_SIGNS, 26)]
    assert len(narrow) == len(lines) + 2 and "B-LOC" in narrow[-1]


def test_labels_and_answers_are_printed():
    labelled = document(1, BOS, piece("fine", 1), label="joy\x1b")
    answered = document(2, piece("in", 1), answer=(piece("out", 1, trained=True), EOS))
    rows = [ShownSample(step=1, forward_pass=1, row=n, documents=(one,), padding=0, answer_padding=n) for n, one in
            enumerate((labelled, answered))]  # fmt: skip
    text = [
        "\n".join("".join(p for p, _ in line) for line in sample_lines(one, 1, 2, UNICODE_SIGNS, 80)) for one in rows
    ]
    assert "2 tokens, labelled, +0 padding\n" in text[0] and text[0].endswith("label: joy\u241b")
    assert "3 tokens, 2 trained (67%), +0 padding, +1 padding in the answer" in text[1]
    assert text[1].endswith("answer:\n    \u27e6out\u27e8<eos>\u27e9\u27e7")


def test_duplicates_count_as_left_out_only_with_dedup():
    counts = PREVIEW.counts
    assert PREVIEW.rows_left_out == counts.bad_rows + counts.untrained_rows == 20
    assert replace(PREVIEW, dedup=True).rows_left_out == 30
    few = replace(PREVIEW, bad_rows=BAD_ROWS, counts=replace(counts, bad_rows=2))
    assert "unusable rows:" in "\n".join(summary_lines(few, UNICODE_SIGNS))


# The command


def test_awkward_documents_are_shown_as_the_model_gets_them(model, capsys):
    path = table("awkward.jsonl", [{"text": text} for text in AWKWARD])
    words = ["--set", "data.max_length=32", "--set", "data.eval_fraction=0", "--set", "tuning.method=full"]
    command = ["preview", "--model", model, "--data", path, *words, "--set", "training.effective_batch_size=20"]
    assert main([*command, "-n", "50"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "\u27e8<bos>\u27e9\u27e6The cat sat.\u27e8<eos>\u27e9\u27e7",
        "\u27e8<bos>\u27e9\u27e6caf\u00e9 \u6f22\u5b57 \U0001f600\u27e8<eos>\u27e9\u27e7",
        "line one\u23ce\n    line two    tab",
        "\u241b[31mred\u241b[0m <U+202E>",
        "\u27e8<bos>\u27e9\u27e6a\u27e8<eos>\u27e9\u27e7",
        "3 tokens, 2 trained (67%), whole",
        "\u27e6\u27e8<eos>\u27e9 in a text, [brackets]",
        "33 tokens, 32 trained (97%), +0 padding\n  row 7 of the training data, cut",
    ):
        assert text in shown, text
    assert "\x1b" not in shown and "the plan packs" in shown
    assert "read      6 documents: 0 bad, 0 duplicate, 0 leaked, 1 cut into" in shown

    assert main([*command, "-n", "50", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    documents = {one["number"]: one for sample in found["samples"] for one in sample["documents"]}
    assert len(documents) == found["counts"]["train_rows"] > 6
    assert sum(one["trained_tokens"] for one in documents.values()) == found["counts"]["train_labels"]
    assert [one["cut"] for _, one in sorted(documents.items())] == [False] * 5 + [True] * (len(documents) - 5)
    whole = ["".join(part["text"] for part in documents[n]["pieces"]) for n in range(1, 6)]
    assert whole == [f"<bos>{text}<eos>" for text in AWKWARD[:5]]
    assert found["choice"] == "packed" and found["padding"]["packed"] < found["padding"]["padded"]


@pytest.mark.full
@pytest.mark.parametrize("packing", ["true", "false"])
def test_previewed_batches_are_those_of_the_planned_run(model, packing, monkeypatch):
    path = table("rows.jsonl", [{"text": "word " * (n % 9 + 1)} for n in range(40)])
    settings = (
        f"data.packing={packing}", "tuning.method=full", "training.effective_batch_size=7", "training.seed=5",
        "training.per_device_train_batch_size=3", "data.group_by_length=true", "training.torch_compile=true",
    )  # fmt: skip
    shortcuts = {"model.model_name_or_path": model, "data.path": path}
    loaded = load_config(Request(assignments=settings, shortcuts=shortcuts))
    got = []
    monkeypatch.setattr(
        "tui_trainer.launching.preview.preview_rows", lambda rows, *more, **_: got.extend([rows, *more]) or []
    )
    make_preview(loaded, 3, lambda *_: None)
    rows, order, layout, count = got
    plan, config = estimated_plan(loaded), loaded.config
    assert plan.train_rows.exact and plan.packing.value == (packing == "true") and count == 3
    assert layout.rows_per_pass == plan.per_device_train_batch_size.value
    assert layout.packed_width == (plan.longest_row if plan.packing.value else 0)
    assert layout.fixed_width == plan.longest_row > 0
    training = RowOrder(rows.lengths, effective_batch=plan.effective_batch_size.value, seed=config.training.seed,
                        group_by_length=True)  # fmt: skip
    assert order.steps_per_epoch == plan.steps_per_epoch.value
    assert [order.at(step).tolist() for step in (1, 2, 9)] == [training.at(step).tolist() for step in (1, 2, 9)]


def test_stream_of_characters_is_cut_and_never_padded(capsys):
    assert main(["preview", "-n", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["task"], found["padding"], len(found["samples"])) == ("char_lm", None, 2)
    for sample in found["samples"]:
        assert sample["padding"] == 0 and sample["trained_tokens"] == sample["tokens"] - 1 == 128


def test_preview_works_where_the_plan_decides_every_number(model, capsys):
    for rows in (1, 30):
        path = table(f"{rows}.jsonl", [{"text": f"The {n}th sheep sang a song on the hill."} for n in range(rows)])
        assert main(["preview", "--model", model, "--data", path, "-n", "1"]) == 0
        assert "sheep" in capsys.readouterr().out


def test_only_assistant_turns_are_marked_as_trained(capsys):
    said = [("user", "Hello?"), ("assistant", "Hi there."), ("user", "[INST] 2+2"), ("assistant", "4")]
    messages = [{"role": role, "content": text} for role, text in said]
    path = table(
        "conversations.jsonl", [{"messages": messages}, {"messages": messages[:2]}, {"messages": messages[2:]}]
    )
    assert main([*scratch("chat", path), "-n", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    documents = [one for sample in found["samples"] for one in sample["documents"]]
    conversation = next(one for one in documents if one["number"] == 1)
    trained = "".join(part["text"] for part in conversation["pieces"] if part["trained"])
    assert "Hi there." in trained and "4" in trained and "Hello" not in trained and "INST" not in trained
    assert len(documents) == 3 and found["learns"] == "tokens"


def test_bad_rows_are_refused_or_listed(capsys, monkeypatch):
    # The memory of this family is measured in a child process, and decides nothing here.
    monkeypatch.setattr("tui_trainer.planning.fit.with_dry_run", lambda config, shape, setup: (setup, ""))
    rows = [{"text": f"text {n}", "label": ("joy", "anger")[n % 2]} for n in range(8)] + [{"text": "", "label": "joy"}]
    command = scratch("sequence_classification", table("rows.jsonl", rows))
    assert main(command) == 2
    message = capsys.readouterr().err
    assert "rows.jsonl, line 9: the column 'text' is empty" in message and "data.on_bad_rows=skip" in message
    assert main([*command, "--set", "data.on_bad_rows=skip"]) == 0
    shown = capsys.readouterr().out
    assert "unusable rows:\n  rows.jsonl, line 9: the column 'text' is empty" in shown
    assert shown.count("rows.jsonl, line 9") == 1, "a note does not say it again"
    assert "labels    one per row: " in shown and "joy 4" in shown and "  label: " in shown
    assert "+0 padding" in shown and "read      9 rows: 1 bad" in shown


@pytest.mark.full
def test_row_with_several_labels_counts_for_each_of_them(capsys, monkeypatch):
    monkeypatch.setattr("tui_trainer.planning.fit.with_dry_run", lambda config, shape, setup: (setup, ""))
    rows = [{"text": f"text {n}", "labels": [["joy", "anger"], ["joy"], []][n % 3]} for n in range(9)]
    command = scratch("sequence_classification", table("rows.jsonl", rows))
    assert main([*command, "--set", "data.eval_fraction=0"]) == 0
    shown = capsys.readouterr().out
    assert "labels    any number per row: joy 6, anger 3" in shown
    assert "label: anger, joy" in shown and "one label" not in shown


def test_impossible_preview_is_refused_in_one_sentence(capsys):
    assert main(["preview", "--task", "causal_lm", "--data", table("a.jsonl", [{"text": "a b c"}])]) == 2
    assert "no model is set" in capsys.readouterr().err
    assert main(["preview", "-n", "0"]) == 2
    assert "greater than or equal to 1" in capsys.readouterr().err
