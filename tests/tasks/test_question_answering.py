"""Question answering (extractive): windows, loss, predictions, runs and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, BertConfig, BertForQuestionAnswering

from tests.tasks.tiny_tasks import TINY, examples, finish, load, of_kind, set_options, write_rows
from tests.tiny_models import save_tiny_model
from tui_trainer.cli import main
from tui_trainer.config.paths import data_of
from tui_trainer.data.batching.row_order import RowOrder
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.data.samples import find_sample
from tui_trainer.errors import DataError
from tui_trainer.models.writing import NO_SAMPLING
from tui_trainer.runs.events import BaselinesMeasured, EvalDone, StepDone
from tui_trainer.tasks.question_answering import TASK
from tui_trainer.training.batches import Layout

SETTINGS = {
    **TINY, "task.type": "question_answering", "data.max_length": 48, "model.init": "scratch", "training.max_steps": 20,
}  # fmt: skip
PLACES = ("Paris", "Jordan", "Sofia", "Austin", "Florence", "Sydney")


def question(n: int, sentences: int = 2) -> dict:
    """Return row n. Every fourth has no answer in its context."""
    parts = [f"Hen {n + one} lives in {PLACES[(n + one) % 6]}." for one in range(sentences)]
    context, wanted = " ".join(parts), n + sentences - 1
    place = PLACES[wanted % 6]
    found = {"text": [place], "answer_start": [context.rindex(f" {place}.") + 1]}
    if n % 4 == 3:
        return {
            "question": f"Where lives cow {n}?",
            "context": context,
            "answers": {"text": [], "answer_start": []},
        }
    return {"question": f"Where lives hen {wanted}?", "context": context, "answers": found}


def squad(rows: list[dict]) -> dict:
    """Return the same rows in the format of SQuAD 2.0."""
    paragraphs = []
    for number, row in enumerate(rows):
        answers = answer_objects(row["answers"])
        asked = {"id": str(number), "question": row["question"], "answers": answers, "is_impossible": not answers}
        paragraphs.append({"context": row["context"], "qas": [asked]})
    return {"version": "v2.0", "data": [{"title": "Hens", "paragraphs": paragraphs}]}


def loaded(data, changes=None):
    return load(SETTINGS, {"data.path": data}, changes or {})


def prepared(tmp_path, rows, changes=None):
    config = loaded(write_rows(tmp_path / "rows.jsonl", rows), changes).config
    return config, TASK.prepare(config, data_of(config), tmp_path / "cache", lambda *_: None)


def text_of(window) -> str:
    """Return the text of the window's context, which is stored as UTF-8 in int32 after the count of its bytes."""
    count, *_ = window.model_arguments["text"].tolist()
    return window.model_arguments["text"][1:].tobytes()[:count].decode()


def small_bert(folder: Path, **changes) -> Path:
    """A model with a head for answers, in a folder."""
    save_tiny_model(folder, "bert", **changes)
    torch.manual_seed(1)
    BertForQuestionAnswering.from_pretrained(folder).save_pretrained(folder)
    return folder


# Rows and windows.


def answer_objects(answers: dict) -> list[dict]:
    pairs = zip(*answers.values(), strict=True)
    return [{"text": text, "answer_start": start} for text, start in pairs]


FORMS = {
    "objects": lambda row, answers: {**row, "answers": answer_objects(answers)},
    "JSON": lambda row, answers: {**row, "answers": json.dumps(answers)},
    "texts": lambda row, answers: {**row, "answers": answers["text"]},
    "a text": lambda row, answers: {**row, "answers": "".join(answers["text"])},
    "numbers with a point": lambda row, answers: {
        **row, "answers": "".join(answers["text"]), "answer_start": next(map(float, answers["answer_start"]), None),
    },
    "another name": lambda row, answers: {"q": row["question"], "passage": row["context"], "answer": answers},
}  # fmt: skip


def test_all_forms_of_answers_give_the_same_rows(tmp_path, subtests):
    rows = [question(n) for n in range(12)]
    whole = {"data.eval_fraction": 0}

    def prepare(path, changes=whole):
        asked = loaded(path, changes)
        data = TASK.prepare(asked.config, asked.data, tmp_path / path.stem, lambda *_: None)
        return [(row.tokens.tolist(), row.labels.tolist()) for row in examples(data.train_path)], data

    expected, data = prepare(write_rows(tmp_path / "plain.jsonl", rows))
    assert len(expected) == 12 and data.details["unanswerable"]
    for name, form in FORMS.items():
        with subtests.test(name):
            path = write_rows(tmp_path / f"{name}.jsonl", [form(row, row["answers"]) for row in rows])
            changes = whole | ({"data.text_column": "q"} if name == "another name" else {})
            assert prepare(path, changes)[0] == expected
    (tmp_path / "squad.json").write_text(json.dumps(squad(rows), indent=1))
    assert prepare(tmp_path / "squad.json")[0] == expected


@pytest.mark.parametrize(
    "family", ["roberta", *(pytest.param(name, marks=pytest.mark.full) for name in ("bert", "albert", "mpnet"))]
)
def test_windows_cover_the_context_and_one_or_two_hold_the_answer(family, tmp_path):
    save_tiny_model(tmp_path / "model", family)
    rows = [question(n, sentences=9) for n in range(8)]
    changes = {
        "model.init": "pretrained",
        "model.model_name_or_path": tmp_path / "model",
        "task.doc_stride": 12,
        "data.eval_fraction": 0,
    }
    _, data = prepared(tmp_path, rows, changes)
    tokenizer, found = AutoTokenizer.from_pretrained(tmp_path / "model"), Rows(data.train_path)
    windows = [found.example(at) for at in range(len(found))]
    assert len(windows) == data.counts.train_rows > 2 * len(rows) and max(map(len, windows)) <= 48
    at = 0
    for row in rows:
        number, count, *_ = windows[at].model_arguments["window"].tolist()[2:]
        assert number == 0
        covered, hits, last_end = set(), 0, None
        for place in range(count):
            one = windows[at + place]
            _, _, number, _, first, end, cls = one.model_arguments["window"].tolist()
            assert number == place and one.tokens[cls] == tokenizer.cls_token_id
            covered |= {*range(first, end)}
            begins, ends = one.labels.tolist()
            assert (begins, ends) == (cls, cls) or first <= begins <= ends < end
            if begins != cls:
                hits += 1
                offsets = one.model_arguments["offsets"].reshape(-1, 2)
                marked = text_of(one)[offsets[begins - first, 0] : offsets[ends - first, 1]]
                assert marked.strip(" .") == row["answers"]["text"][0]
            # Windows share 12 tokens: the one before ends with those that this one begins with.
            if last_end is not None:
                assert last_end.tolist() == one.tokens[first : first + 12].tolist()
            last_end = one.tokens[end - 12 : end]
        assert 1 <= hits <= 2 if row["answers"]["text"] else hits == 0
        at += count
    assert at == len(windows)


def test_windows_overlap_by_half_at_most_and_a_long_question_is_cut(tmp_path):
    """A context gives at most twice as many tokens, whatever task.doc_stride is."""
    rows = [question(n, sentences=12) for n in range(6)] + [{**question(0), "question": "Where? " * 40}]
    _, data = prepared(tmp_path, rows, {"task.doc_stride": 5000, "data.eval_fraction": 0})
    _, whole = prepared(tmp_path, rows, {"task.doc_stride": 1, "data.eval_fraction": 0})
    assert whole.counts.train_rows < data.counts.train_rows < 2.5 * whole.counts.train_rows
    assert data.counts.truncated_rows >= 1 and data.counts.longest_row <= 48


def test_notes_describe_the_answers_of_the_data(tmp_path):
    rows = [question(n) for n in range(8)]
    context = "hen " * 90
    rows.append({"question": "Where?", "context": context, "answers": {"text": [context], "answer_start": [0]}})
    rows[0]["answers"] = {"text": ["Hen 0", "Hen"], "answer_start": [0, 0]}
    rows[1]["answers"] = "Hen"
    _, data = prepared(tmp_path, rows)
    told = " | ".join(data.notes)
    assert "questions are in the column 'question'" in told and "2 questions have no answer" in told
    assert "1 answer" in told and "are truncated to task.max_target_length" in told
    assert "1 question has several answers" in told and "1 answer occurs more than once" in told


ROW = {"question": "Where?", "context": "In Paris.", "answers": {"text": ["Paris"], "answer_start": [3]}}
MISSING = object()
BAD = {
    "wrong place": ({"answers": {"text": ["Paris"], "answer_start": [2]}}, "'Paris' is not at character 2"),
    "not there": ({"answers": "London"}, "the answer 'London' is not in the context"),
    "blank": ({"answers": {"text": [" "], "answer_start": [2]}}, "is blank"),
    "a number": ({"answers": [7]}, "an answer in the column 'answers' is a number"),
    "a place too few": (
        {"answers": {"text": ["In", "Paris"], "answer_start": [0]}},
        "but answer_start has 1",
    ),
    "a place too many": ({"answers": {"text": ["Paris"], "answer_start": [3, 9]}}, "but answer_start has 2"),
    "a place without a text": ({"answers": {"answer_start": [3]}}, "0 answers, but answer_start has 1"),
    "half a place": ({"answers": "Paris", "answer_start": 3.5}, "answer_start is a number ('3.5'), not a whole number"),
    "a word as place": ({"answers": "Paris", "answer_start": "there"}, "answer_start is a string ('there')"),
    "behind the end": (
        {"answers": {"text": ["Paris"], "answer_start": [99]}},
        "character 99 of the context, which has 9",
    ),
    "one of several": (
        {"answers": {"text": ["Paris", "Rome"], "answer_start": [3, 3]}},
        "'Rome' is not at character 3",
    ),
    "no answers at all": ({"answers": MISSING}, "the row has no column 'answers'"),
    "impossible, and answered": ({"is_impossible": True}, "is_impossible is true, but there is an answer"),
    "possible, and not": ({"is_impossible": False, "answers": []}, "is_impossible is false, but there is no answer"),
    "no question": ({"question": " "}, "the question is empty"),
    "no context": ({"context": ""}, "the context is empty"),
    "a list": ({"context": ["In Paris."]}, "the column 'context' is a list"),
}


def test_bad_rows_are_refused_with_their_place(tmp_path, subtests):
    for name, (changes, words) in BAD.items():
        with subtests.test(name):
            bad = {key: value for key, value in {**ROW, **changes}.items() if value is not MISSING}
            with pytest.raises(DataError) as caught:
                prepared(tmp_path, [*[{**ROW, "question": f"{n}?"} for n in range(9)], bad])
            problem = caught.value.problems[0]
            assert words in problem.message and problem.where.endswith("line 10")


BAD_ARTICLES = {
    "off by one": ({"context": "In Paris.", "qas": [{**ROW, "answers": {"text": "Paris", "answer_start": 4}}]},
                   "paragraph 2, question 1", "'Paris' is not at character 4 of the context, which has 'aris.' there"),
    "not asked about": ({"context": "In Paris.", "qas": ["Where?"]}, "paragraph 2, question 1", "the row is a string"),
    "no context": ({"qas": []}, "paragraph 2", "the paragraph has no context"),
    "no questions": ({"context": "In Paris."}, "paragraph 2", "no list of questions (qas)"),
    "no answers": ({"context": "In Paris.", "qas": [{"question": "?"}]}, "question 1", "has no column 'answers'"),
}  # fmt: skip


def test_mistakes_in_json_of_squad_are_refused_with_their_place(tmp_path, subtests):
    for name, (paragraph, place, words) in BAD_ARTICLES.items():
        with subtests.test(name):
            whole = squad([question(n) for n in range(8)])
            whole["data"] = [{"title": "Nothing yet", "paragraphs": []}, *whole["data"]]
            whole["data"][1]["paragraphs"][1:1] = [paragraph]
            (tmp_path / "squad.json").write_text(json.dumps(whole))
            asked = loaded(tmp_path / "squad.json")
            with pytest.raises(DataError) as caught:
                TASK.prepare(asked.config, asked.data, tmp_path / "cache", lambda *_: None)
            [problem] = caught.value.problems
            assert words in problem.message and "item 2, paragraph 2" in problem.where and place in problem.where


SETTINGS_REFUSED = {
    "training.label_smoothing_factor=0.1": "does not apply to answers",
    "evaluation.metric_for_best_model=rouge1": "available: loss, exact_match, f1",
    "data.label_column=x": "question_answering does not use it",
    "data.text_column=quest": "did you mean 'question'?",
    "data.max_length=3": "3 special tokens must fit around a question and its context",
}


def test_bad_settings_are_refused_before_there_is_a_run(capsys, subtests):
    write_rows(Path("rows.jsonl"), [question(n) for n in range(12)])
    for setting, message in SETTINGS_REFUSED.items():
        with subtests.test(setting):
            assert main(["--no-ui", *set_options(SETTINGS), "--set", setting, "--data", "rows.jsonl"]) == 2
            assert message in capsys.readouterr().err and not Path("runs").exists()


# The loss.


def test_loss_and_gradients_are_those_of_transformers(tmp_path, subtests):
    folder = small_bert(tmp_path / "model")
    changes = {"model.init": "pretrained", "model.model_name_or_path": folder, "data.eval_fraction": 0}
    config, data = prepared(tmp_path, [question(n, sentences=n % 3 + 1) for n in range(8)], changes)
    rows = examples(data.train_path)
    assert len({len(row) for row in rows}) > 2, "rows of several lengths are padded"
    theirs = AutoModelForQuestionAnswering.from_pretrained(folder)
    direct = torch.stack([model_loss(theirs, row) for row in rows]).mean()
    direct.backward()
    for batch_rows in (1, 3, 8):
        with subtests.test(f"{batch_rows} rows in a batch"):
            mine = AutoModelForQuestionAnswering.from_pretrained(folder)
            loss, total, labels = TASK.objective(config, data, mine, chunk_tokens=0), 0.0, 0
            for batch in Layout(collate=TASK.collate(mine, 0), rows_per_pass=batch_rows).micro_batches(rows):
                part = loss(batch)
                part.backward()
                total, labels = total + part.item(), labels + batch.label_count
            assert labels == 2 * len(rows) and total / labels == pytest.approx(direct.item(), rel=1e-6)
            for own, other in zip(mine.parameters(), theirs.parameters(), strict=True):
                if other.grad is not None:
                    torch.testing.assert_close(own.grad / labels, other.grad, atol=1e-6, rtol=1e-4)


def model_loss(model, row):
    inputs = {
        "input_ids": row.tokens,
        **{name: row.model_arguments[name] for name in ("token_type_ids",) if name in row.model_arguments},
    }
    first, last = (torch.tensor([place]) for place in row.labels.tolist())
    given = {name: torch.tensor(values.astype(np.int64))[None] for name, values in inputs.items()}
    return model(**given, start_positions=first, end_positions=last).loss


@pytest.mark.full
def test_the_losses_of_twenty_steps_are_those_of_a_plain_loop(tmp_path):
    """The rows are made by transformers' recipe for SQuAD; the losses of all steps agree within 1e-5."""
    folder, rows = small_bert(tmp_path / "model"), [question(n, sentences=7) for n in range(40)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    changes = {
        "model.init": "pretrained", "model.model_name_or_path": folder, "data.eval_fraction": 0, "data.dedup": "false",
        "task.doc_stride": 16, "training.learning_rate": 1e-3, "training.lr_scheduler_type": "constant",
        "training.warmup_steps": 0, "training.weight_decay": 0.0, "training.max_grad_norm": 1.0,
        "logging.logging_steps": 1, "tuning.method": "full",
    }  # fmt: skip
    mine = [event.loss for event in of_kind(finish(loaded(data, changes)), StepDone)]

    tokenizer, model = (one.from_pretrained(folder) for one in (AutoTokenizer, AutoModelForQuestionAnswering))
    encoded = tokenizer(
        [row["question"] for row in rows], [row["context"] for row in rows], truncation="only_second", max_length=48,
        stride=16, return_overflowing_tokens=True, return_offsets_mapping=True,
    )  # fmt: skip
    features = []
    for at, offsets in enumerate(encoded["offset_mapping"]):
        answers, inside = rows[encoded["overflow_to_sample_mapping"][at]]["answers"], encoded.sequence_ids(at)
        places = [place for place, part in enumerate(inside) if part == 1]
        first = last = 0
        if answers["text"]:
            start = answers["answer_start"][0]
            end = start + len(answers["text"][0])
            if offsets[places[0]][0] <= start and offsets[places[-1]][1] >= end:
                first = max(place for place in places if offsets[place][0] <= start)
                last = min(place for place in places if offsets[place][1] >= end)
        inputs = {name: torch.tensor([encoded[name][at]]) for name in ("input_ids", "token_type_ids")}
        features.append({**inputs, "start_positions": torch.tensor([first]), "end_positions": torch.tensor([last])})
    lengths, seed = np.array([one["input_ids"].shape[1] for one in features]), loaded(data).config.training.seed
    order = RowOrder(lengths, effective_batch=8, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    theirs = []
    model.train()
    for step in range(1, 21):
        loss = torch.stack([model(**features[number]).loss for number in order.at(step)]).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        theirs.append(loss.item())
    assert len(mine) == 20 and mine[-1] < mine[0]
    assert mine == pytest.approx(theirs, abs=1e-5)


# Answers.


class Pointer(torch.nn.Module):
    """A model that gives the logits of each window, by its number."""

    config = BertConfig(pad_token_id=0)

    def __init__(self, places: dict[int, tuple[int, int, float, float]]) -> None:
        super().__init__()
        self.places, self.none = places, torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids, attention_mask, **more):
        start, end = (torch.zeros(input_ids.shape) for _ in range(2))
        for at in range(len(input_ids)):
            first, last, score, null = self.places[self.window[at]]
            start[at, first] = end[at, last] = score
            start[at, 0] = end[at, 0] = null
        return type("Output", (), {"start_logits": start, "end_logits": end})()


COMPETING = [
    ((2.0, 5.0), (1.0, 1.0), True, 1.0),  # the window with the higher score
    ((2.0, 5.0), (9.0, 1.0), True, 1.0),  # a window without the answer does not decide for the others
    ((2.0, 5.0), (9.0, 6.0), True, 0.0),  # no answer is more likely in all windows
    ((2.0, 5.0), (9.0, 6.0), False, 1.0),  # and all questions of the training data have answers
    ((6.0, 5.0), (1.0, 1.0), True, 0.0),
]


def test_answers_of_all_windows_compete(tmp_path, subtests):
    long = question(0, sentences=7)
    changes = {"data.eval_fraction": 0, "task.doc_stride": 4, "task.max_answer_length": 30}
    config, data = prepared(tmp_path, [long], changes)
    rows = Rows(data.train_path)
    windows = [rows.example(at) for at in range(len(rows))]
    right = [at for at, row in enumerate(windows) if row.labels[0] > 0]
    assert len(right) == 1 and len(windows) > 1
    for scores, nulls, may_be_none, exact in COMPETING:
        with subtests.test(f"scores {scores}, no answer {nulls}, may have no answer: {may_be_none}"):
            model = Pointer({})
            for at, row in enumerate(windows):
                first = int(row.model_arguments["window"][4])
                begins, ends = row.labels.tolist() if at in right else (first, first + 1)
                model.places[at] = (begins, ends, scores[at in right], nulls[at in right])
            asked = replace(data, details={**data.details, "unanswerable": may_be_none})
            scorer = TASK.scorer(config, asked, TASK.objective(config, asked, model, chunk_tokens=0))
            layout = Layout(collate=TASK.collate(model, 0), rows_per_pass=1)
            for at in reversed(range(len(rows))):
                model.window = [at]
                for batch in layout.micro_batches([rows.example(at)]):
                    scorer.observe(batch)
            scored = scorer.scores()
            assert scored.values["exact_match"] == exact
            assert scored.table_rows["with an answer"][2] == 1 and scored.table_columns[2] == "questions"


def test_predicted_answers_are_parts_of_the_context_of_limited_length(tmp_path):
    folder = small_bert(tmp_path / "model")
    tokenizer, model = (one.from_pretrained(folder) for one in (AutoTokenizer, AutoModelForQuestionAnswering))
    config = loaded(
        "x", {"model.init": "pretrained", "model.model_name_or_path": folder, "task.max_answer_length": 2}
    ).config
    asked = [(row["question"], row["context"]) for row in (question(n, sentences=6) for n in range(4))]
    rows = TASK.encode_inputs(config, model, tokenizer, asked, NO_SAMPLING)
    together = TASK.predict(config, model, tokenizer, rows, NO_SAMPLING)
    for (_, context), row, found in zip(asked, rows, together, strict=True):
        [alone] = TASK.predict(config, model, tokenizer, [row], NO_SAMPLING)
        assert alone["answer"] == found["answer"] and 0 < found["probability"] <= 1
        assert context[found["start"] : found["end"]] == found["answer"]
        assert 1 <= len(tokenizer(found["answer"], add_special_tokens=False)["input_ids"]) <= 2
        assert len(row.content[1]) > 1
    model.config.version_2_with_negative = True
    with torch.no_grad():
        model.qa_outputs.bias.zero_()
        model.qa_outputs.weight.zero_()  # all places are as likely as nothing
    [found] = TASK.predict(config, model, tokenizer, rows[:1], NO_SAMPLING)
    assert found["probability"] == pytest.approx(1 / 21, abs=1e-5), "one of 20 candidates, or none"


def test_typed_text_is_split_into_question_and_context():
    reader = TASK.input_reader(loaded("x").config, None)
    assert reader.of_text("Where is it? In Paris.") == ("Where is it?", "In Paris.")
    assert reader.of_text("Name a town\tWhich one? Paris.") == ("Name a town", "Which one? Paris.")
    with pytest.raises(DataError, match="no text to search"):
        reader.of_text("Where is it?")


# Whole runs.


@pytest.mark.full
def test_a_run_beats_its_baselines_and_its_model_answers_with_plain_transformers(tmp_path):
    rows = [question(n, sentences=1) for n in range(240)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    folder = finish(loaded(data, {"training.max_steps": 60, "evaluation.metric_for_best_model": "f1"}))
    evaluation, baselines = of_kind(folder, EvalDone)[-1], of_kind(folder, BaselinesMeasured)[0]
    assert set(baselines.scores) == {
        f"{metric} of {what}"
        for metric in ("exact_match", "f1")
        for what in ("the sentence nearest to the question", "no answer")
    }
    assert evaluation.scores["f1"] > max(baselines.scores.values()) + 0.2
    model, tokenizer = (
        AutoModelForQuestionAnswering.from_pretrained(folder.model),
        AutoTokenizer.from_pretrained(folder.model),
    )
    assert model.config.version_2_with_negative and model.config.id2label == {0: "start", 1: "end"}
    encoded = tokenizer(
        "Where lives hen 5?", "Hen 5 lives in Sydney.", return_tensors="pt", return_offsets_mapping=True
    )
    offsets = encoded.pop("offset_mapping")[0].tolist()
    found = model(**encoded)
    first, last = (int(logits[0].argmax()) for logits in (found.start_logits, found.end_logits))
    assert "Hen 5 lives in Sydney."[offsets[first][0] : offsets[last][1]].strip(" .") == "Sydney"
    answer = TASK.answer(
        loaded(data).config, model, tokenizer, "Where lives hen 5? Hen 5 lives in Sydney.", NO_SAMPLING
    )
    assert answer.startswith("Sydney")


def test_the_shipped_sample_has_answers_at_their_positions():
    rows = [values for _, values in find_sample("python-questions").content()]
    assert len(rows) > 3000 and len({row["question"] for row in rows}) == 4
    none = sum(not row["answers"]["text"] for row in rows)
    assert 0.1 < none / len(rows) < 0.4
    for row in rows:
        for text, start in zip(*row["answers"].values(), strict=True):
            assert text and row["context"][start : start + len(text)] == text
