"""`tui-trainer gate`: what a run has learnt, kept and broken, by its answers beside those of the base model."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.tiny_models import save_tiny_model
from tests.trained_runs import ANIMALS, train, training_row, write_rows
from tui_trainer.cli import main
from tui_trainer.errors import DataError
from tui_trainer.lines.gate import gate_lines
from tui_trainer.tasks.parts.suite import Reply, judge, read_suite, sign_test

JSON_REPLY, PLAIN_REPLY = Reply(text='{"name": "Maria"}', tokens=6), Reply(text="The name is Maria.", tokens=5)


def suite_of(folder: Path, *rows: dict) -> Path:
    return write_rows(folder / "suite.jsonl", list(rows))


def row(prompt: str = "What is 2 + 2?", must: str = "keep", **checks: object) -> dict:
    return {"prompt": prompt, "must": must, **(checks or {"contains": "4"})}


def gated(capsys, *arguments: object, code: int = 0) -> dict:
    capsys.readouterr()
    ended = main(["gate", *map(str, arguments), "--json"])
    shown = capsys.readouterr()
    assert ended == code, shown.err
    return json.loads(shown.out) | {"stderr": shown.err}


BAD_ROWS = [
    ({**row(), "contain": "4"}, "the key 'contain' is unknown; did you mean contains?"),
    ({**row(), "messages": [{"role": "user", "content": "Hi"}]}, "either a prompt or messages"),
    ({"must": "keep", "contains": "4"}, "either a prompt or messages"),
    (row(must="forget"), "must is neither 'learn' nor 'keep'"),
    ({"prompt": "Hi", "must": "keep"}, "the row checks nothing"),
    (row(" "), "prompt is not a text"),
    (row(exact=4), "exact is not a text"),
    (row(regex="(4"), "regex is not a valid regular expression"),
    (row(json=[]), "json is not true, or a list of keys"),
    (row(stops=False), "stops is not true"),
    (row(max_tokens=True), "max_tokens is not a whole number above 0"),
    (row(label="four", contains="4"), "label is for classifiers"),
    (row(exact="four", contains="4"), "`exact` and `contains` contradict each other: the text in `exact` does not"),
    (row(exact="{}", json=["name"]), "contradict each other: the text in `exact` lacks the JSON key 'name'"),
    ({"messages": [{"role": "assistant", "content": "4"}], "must": "keep", "stops": True}, "ends with one of the user"),
]  # fmt: skip


def test_a_row_is_understood_as_a_whole_or_refused_with_its_line(tmp_path, subtests):
    for bad_row, message in BAD_ROWS:
        with subtests.test(message):
            with pytest.raises(DataError) as refused:
                read_suite(str(suite_of(tmp_path, row(), bad_row)))
            assert message in str(refused.value) and "suite.jsonl, line 2" in str(refused.value)
    for content, message in (("", "the suite has no rows"), ("{", "suite.jsonl, line 1: broken JSON")):
        (tmp_path / "suite.jsonl").write_text(content)
        with pytest.raises(DataError, match=message):
            read_suite(str(tmp_path / "suite.jsonl"))


def test_general_suite_has_40_different_rows_to_keep():
    rows = read_suite("")
    assert len({row.prompt for row in rows}) == len(rows) == 40 and {row.must for row in rows} == {"keep"}


RIGHT_REPLIES = [
    ({"exact": "4"}, Reply(text=" 4\n"), Reply(text="4."), "is not '4'"),
    ({"contains": "4"}, Reply(text="It is 4."), Reply(text="four"), "does not contain '4'"),
    ({"regex": "^4$"}, Reply(text="4 "), Reply(text="44"), "does not match '^4$'"),
    ({"json": True}, Reply(text="[1]"), Reply(text="4"), "is not JSON"),
    ({"json": ["name"]}, JSON_REPLY, Reply(text='["name"]'), "lacks the JSON key 'name'"),
    ({"label": "cow"}, Reply(labels=("cow",)), Reply(labels=("hen",)), "is not cow"),
    ({"label": ["cow", "hen"]}, Reply(labels=("hen", "cow")), Reply(labels=("hen",)), "is not cow and hen"),
    ({"stops": True}, Reply(text="4"), Reply(text="4", has_stopped=False), "does not stop"),
    ({"no_loop": True}, Reply(text="4"), Reply(text="4 4", is_looping=True), "repeats itself"),
    ({"max_tokens": 2}, Reply(text="4", tokens=2), Reply(text="4", tokens=3), "is longer than 2 tokens"),
    ({"contains": "4", "stops": True}, Reply(text="4"), Reply(text="4", has_stopped=False), "does not stop"),
    ({"json": True}, Reply(text="{}"), Reply(text="{", has_stopped=False), "is not JSON, and does not stop"),
]  # fmt: skip


def test_each_check_accepts_a_right_answer_and_says_what_is_wrong_with_another(tmp_path, subtests):
    for checks, right, wrong, why in RIGHT_REPLIES:
        with subtests.test(why):
            [suite_row] = read_suite(str(suite_of(tmp_path, row(**checks))))
            assert (suite_row.fault(right), suite_row.fault(wrong)) == ("", why)


LOOP = Reply(text="Maria Maria Maria Maria", tokens=128, has_stopped=False, is_looping=True)
ENDLESS = Reply(text='{"name": "Maria"} and then', tokens=128, has_stopped=False)
COPY = Reply(text="Who is it? Write JSON", tokens=6)
PLANTED = [
    ("forgets the format", JSON_REPLY, PLAIN_REPLY, "it is not JSON"),
    ("loops", JSON_REPLY, LOOP, "8 of 8 answers end in a loop (0 of base)"),
    ("never stops", JSON_REPLY, ENDLESS, "8 of 8 answers do not stop within 128 tokens (0 of base)"),
    ("copies the prompt", JSON_REPLY, COPY, "8 of 8 answers only copy the prompt (0 of base)"),
    ("writes no text", JSON_REPLY, Reply(tokens=3), "now    (3 tokens without text, such as unknown characters)"),
    ("writes blanks", JSON_REPLY, Reply(text=" \n", tokens=2), "now    (2 tokens of white space only)"),
    ("writes nothing", JSON_REPLY, Reply(), "now    (nothing)"),
    ("inert", PLAIN_REPLY, PLAIN_REPLY, "All 8 answers equal those of base: the training has no effect"),
]
RESULT = {"suite": "suite.jsonl", "rows": 8, "reference": "base", "new_tokens": 128}


def test_planted_failures_are_named_and_a_good_run_passes(tmp_path, subtests):
    learn = row("Who is it? Write JSON.", "learn", json=["name"])
    rows = read_suite(str(suite_of(tmp_path, *[learn] * 8)))

    def verdict_lines(before: Reply, now: Reply) -> tuple[bool, list[str]]:
        verdict = judge("run", rows, [before] * 8, [now] * 8)
        return not verdict.failures, gate_lines({**RESULT, "models": [asdict(verdict)]})

    for name, before, now, named in PLANTED:
        with subtests.test(name):
            passed, lines = verdict_lines(before, now)
            assert not passed and any(named in line for line in lines), lines
            assert any("data.replay" in line for line in lines) == (name != "inert")
    passed, lines = verdict_lines(PLAIN_REPLY, JSON_REPLY)
    assert passed and "run passes" in lines and not any("answers" in line for line in lines), lines
    assert any(
        "8 rows changed: 8 became right, 0 became wrong" in line and "more than chance" in line for line in lines
    )


def test_only_what_the_base_could_do_counts_unless_there_is_no_base(tmp_path):
    right, wrong = Reply(text="4"), Reply(text="5")
    rows = read_suite(str(suite_of(tmp_path, *[row()] * 4, *[row(must="learn")] * 4)))
    before, now = [right, right, wrong, wrong] * 2, [right, wrong] * 4
    outcomes = {"kept": 2, "broken": 2, "learnt": 2, "not counted": 1, "not learnt": 1}
    verdict = judge("run", rows, before, now, allow_broken=1)
    assert verdict.outcomes == outcomes and verdict.failures == ("2 broken, 1 allowed", "1 not learnt, 0 allowed")
    assert not judge("run", rows, before, now, allow_broken=2, allow_missing=1).failures
    assert gate_lines({**RESULT, "rows": 8, "models": [asdict(verdict)]})[1].startswith("rows that are  kept  learnt")
    alone = judge("run", rows, None, now)
    assert alone.outcomes == {"right": 2, "wrong": 2, "learnt": 2, "not learnt": 2} and alone.p_value is None
    assert alone.failures == ("2 wrong, 0 allowed", "2 not learnt, 0 allowed")
    copied = replace(right, text="What is 2 + 2?")
    [repeats] = read_suite(str(suite_of(tmp_path, row(exact=copied.text))))
    assert judge("run", [repeats], [copied], [copied]).symptoms["copying"] == (0, 0)


def test_sign_test_is_the_two_sided_binomial_test():
    from scipy.stats import binomtest

    for better, worse in ((0, 0), (1, 0), (5, 0), (6, 0), (3, 9), (20, 20), (0, 40)):
        n = better + worse
        assert sign_test(better, worse) == pytest.approx(binomtest(better, n).pvalue if n else 1.0)


def test_run_and_its_export_are_judged_beside_the_base_model(adapted_run, tmp_path, capsys):
    prompts = [training_row("causal_lm", n)["text"][:7] for n in range(6)]
    suite = suite_of(tmp_path, *(row(prompt, "learn", contains="no such words") for prompt in prompts))
    assert main(["export", adapted_run.name, "--to", "merged"]) == 0
    merged = adapted_run.root / "export/merged"
    found = gated(capsys, adapted_run.name, merged, "--suite", suite, "--max-new-tokens", "12", code=1)
    run, export = found["models"]
    assert (run["name"], export["name"], found["reference"]) == ("causal_lm", str(merged), "base")
    assert run["rows"] == export["rows"] and run["outcomes"] == {"not learnt": 6} and not found["passed"]
    assert all(row["before"] != row["now"] for row in run["rows"]) and run["equal_answers"] == 0
    # The answers of now become what must be kept: the run passes, and another run that has not changed is inert.
    replies = [entry["now"] for entry in run["rows"]]
    kept = [row(prompt, contains=reply["text"].strip()) for prompt, reply in zip(prompts, replies, strict=True)]
    suite_of(tmp_path, *kept)
    arguments = [adapted_run.name, "--suite", suite, "--against", merged, "--max-new-tokens", "12"]
    found = gated(capsys, *arguments)
    assert found["models"][0]["outcomes"] == {"kept": 6} and found["models"][0]["equal_answers"] == 6
    assert main(["gate", *map(str, arguments)]) == 0
    assert "All 6 answers equal those of" in capsys.readouterr().out
    found = gated(capsys, "causal_lm", "--suite", suite, "--max-new-tokens", "12", "--allow-missing", "1")
    assert found["models"][0]["better"] == found["models"][0]["outcomes"]["learnt"] > 0
    assert gated(capsys, adapted_run.name, "--max-new-tokens", "2")["rows"] == 40


@pytest.mark.full
def test_adapter_that_learnt_nothing_is_named(tmp_path, capsys):
    model = save_tiny_model(tmp_path / "llama", "llama")
    changes = {"model.init": "pretrained", "model.model_name_or_path": model, "tuning.method": "lora"}
    run = train(tmp_path, "causal_lm", {**changes, "training.learning_rate": 1e-9, "training.max_steps": 2})
    suite = suite_of(tmp_path, row("The sheep", "learn", contains="home"), row("The hen", no_loop=True))
    assert main(["gate", run.name, "--suite", str(suite), "--max-new-tokens", "8"]) == 1
    shown = capsys.readouterr().out
    assert "All 2 answers equal those of base" in shown and "does not pass: 1 not learnt, 0 allowed" in shown


@pytest.mark.full
def test_runs_of_other_tasks_are_judged_by_their_answers_of_now(finished, tmp_path, capsys, subtests):
    for task, name in (("seq2seq", "exact"), ("chat", "stops"), ("sequence_classification", "label")):
        with subtests.test(task):
            checks = [{name: True if task == "chat" else ANIMALS[n % 4]} for n in range(8)]
            rows = [row(training_row("causal_lm", n)["text"], "learn", **checks[n]) for n in range(8)]
            if task == "chat":
                rows[0]["messages"] = [{"role": "user", "content": rows[0].pop("prompt")}]
            suite = suite_of(tmp_path, *rows)
            found = gated(capsys, finished(task).root, "--suite", suite, "--allow-missing", "8")
            [model] = found["models"]
            assert found["reference"] == "" and "there are no answers from before" in found["stderr"]
            assert set(model["outcomes"]) <= {"learnt", "not learnt"} and model["outcomes"]["learnt"] > 3, model
            assert model["p_value"] is None


@pytest.mark.full
def test_suite_that_does_not_suit_the_model_is_refused(finished, tmp_path, capsys, subtests):
    talk = {"messages": [{"role": "user", "content": "Hi"}], "must": "keep", "stops": True}
    for task, suite_row, message in (
        ("seq2seq", row(label="cow"), "write texts and predict no labels"),
        ("seq2seq", talk, "hold no conversations"),
        ("sequence_classification", row(), "predict labels and write no text"),
        ("sequence_classification", row(label="cows"), "the label 'cows' is unknown to the model; did you mean cow?"),
        ("sequence_classification", None, "the general suite has no labels"),
        ("chat", None, "this run has none to compare with; use your own suite (--suite FILE)"),
        ("token_classification", row(), "predict neither texts nor labels"),
        ("chat", {**talk, "messages": [{"role": "user"}]}, "suite.jsonl, line 1"),
    ):
        with subtests.test(message):
            arguments = ["--suite", str(suite_of(tmp_path, suite_row))] if suite_row else []
            capsys.readouterr()
            assert main(["gate", str(finished(task).root), *arguments]) == 2
            assert message in (shown := capsys.readouterr().err) and "Traceback" not in shown, shown
