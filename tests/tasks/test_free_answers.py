"""Greedy answers to held-out prompts at evaluations: their scores, when they are generated, and what they change."""

from __future__ import annotations

import shutil

import pytest
import torch

from tests.tasks.test_chat import conversations, loaded, prepared, tiny_folder  # noqa: F401
from tests.tasks.tiny_tasks import finish, of_kind, write_rows
from tui_trainer.errors import InputError
from tui_trainer.launching.open_run import reopen_run
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.models.writing import Answer
from tui_trainer.planning.duration import answer_seconds, answers_interval
from tui_trainer.runs.events import EvalDone, StepDone
from tui_trainer.tasks import find_task
from tui_trainer.tasks.parts.free_answers import Prompt, free_answer_scores, is_json, is_looping

TASK = find_task("chat")


def answer(text: str, tokens: int = 4, *, has_stopped: bool = True) -> Answer:
    return Answer(text=text, ids=list(range(tokens)), has_stopped=has_stopped, limit=8)


def prompt(reference: str, tokens: int = 4, *, has_end: bool = True) -> Prompt:
    return Prompt([1], list(range(tokens)), has_end, reference)


def test_a_loop_is_a_repeated_end(subtests):
    for ids, expected in (
        ([7] * 16, True), ([7] * 15, False), ([*range(30), *[1, 2, 3] * 6], True), ([1, 2, 3] * 5, False),
        ([*range(10)] * 4, True), ([*range(10)] * 3, False), ([*[1, 2] * 20, 9], False), ([], False),
    ):  # fmt: skip
        with subtests.test(ids=ids):
            assert is_looping(ids) is expected


def test_json_is_a_whole_object_or_array():
    assert [is_json(text) for text in ('{"a": 1}', "[]", "3", '{"a": 1} ok', "{")] == [True, True, False, False, False]


def test_scores_of_answers(subtests):
    """Each score is over the answers whose reference allows it, and is missing without such a reference."""
    for answers, prompts, expected in (
        ([answer("The goat."), answer("a cow")], [prompt("the goat"), prompt("A hen.")],
         {"stopped_answers": 1, "looping_answers": 0, "exact_match": 0.5, "answer_length": 1}),
        ([answer("x", 8, has_stopped=False)] * 2, [prompt("x", 4), prompt("x", 9)],
         {"stopped_answers": 0, "looping_answers": 0, "exact_match": 1, "answer_length": 16 / 13}),
        ([answer("x", 8, has_stopped=False)], [prompt("", has_end=False)], {"looping_answers": 0}),
        ([answer("oops"), answer("{}")], [prompt('{"a": 1}'), prompt("[2]")],
         {"stopped_answers": 1, "looping_answers": 0, "exact_match": 0, "answer_length": 1, "valid_json": 0.5}),
    ):  # fmt: skip
        with subtests.test(prompts=prompts):
            assert free_answer_scores(answers, prompts) == expected


@pytest.mark.full
def test_losses_are_the_same_with_and_without_answers(loaded):  # noqa: F811
    changes = {"evaluation.eval_steps": 10, "training.max_steps": 40}
    losses, scores = {}, {}
    for rows in ("auto", 4, 0):
        changes |= {"evaluation.generate_rows": rows, "output.name": f"rows-{rows}"}
        run = finish(loaded(changes, scratch=True))
        evaluations = of_kind(run, EvalDone)
        losses[rows] = [step.loss_sum for step in of_kind(run, StepDone)], [done.loss for done in evaluations]
        scores[rows] = [done.scores for done in evaluations]
    assert losses["auto"] == losses[4] == losses[0]
    assert not any(scores[0]) and all(scores[4]) and scores["auto"][-1]
    assert {*scores[4][-1]} == {"stopped_answers", "looping_answers", "exact_match", "answer_length"}
    assert scores[4][-1]["stopped_answers"] == 1, "the model has learned to end an answer"


@pytest.mark.full
def test_answers_that_were_right_before_training_are_scored_also_after_a_resume(loaded, tmp_path):  # noqa: F811
    suite = write_rows(tmp_path / "suite.jsonl", [
        {"prompt": "Who is number 1?", "must": "keep", "regex": "(?s).*"},
        {"messages": [{"role": "user", "content": "Who is number 2?"}], "must": "keep", "contains": "no such answer"},
        {"prompt": "Who is number 3?", "must": "learn", "contains": "cow"},
    ])  # fmt: skip
    changes = {"evaluation.eval_steps": 10, "checkpoint.save_steps": 10, "training.max_steps": 20}
    changes["evaluation.generate_rows"], losses = 0, {}
    for name, gate_suite in (("without", ""), ("with", suite)):
        run = finish(loaded(changes | {"evaluation.gate_suite": gate_suite, "output.name": name}, scratch=True))
        losses[name] = [step.loss_sum for step in of_kind(run, StepDone)]
    assert losses["with"] == losses["without"]
    assert [done.scores for done in of_kind(run, EvalDone)] == [{"kept_answers": 1.0}] * 2
    write_rows(suite, [{"prompt": "Who is number 3?", "must": "learn", "contains": "cow"}])
    with pytest.raises(InputError, match=r"evaluation\.gate_suite: the suite has no rows to keep"):
        finish(loaded({"evaluation.gate_suite": suite}, scratch=True))
    suite.unlink()
    for folder in (run.model, run.checkpoints / "step-20"):
        shutil.rmtree(folder)
    assert execute_run(reopen_run(run)).exit_code == 0
    assert [(done.step, done.scores) for done in of_kind(run, EvalDone)][2:] == [(20, {"kept_answers": 1.0})]


def test_automatic_answers_take_a_small_share_of_the_time(subtests):
    for rows, training_seconds, evaluations, expected in (
        ("auto", 1000.0, 10, 1), ("auto", 100.0, 10, 2), ("auto", 1.0, 10, 10), ("auto", None, 10, 1), (8, 1.0, 10, 1),
    ):  # fmt: skip
        with subtests.test(rows=rows, training_seconds=training_seconds):
            assert answers_interval(rows, training_seconds, evaluations, seconds=1.0)[0] == expected


def test_a_plan_counts_the_answers_to_a_suite_also_before_the_first_step(loaded):  # noqa: F811
    changes = {"evaluation.generate_rows": 0, "evaluation.eval_steps": 0}
    without, plan = (
        estimated_plan(loaded({**changes, "evaluation.gate_suite": suite}, scratch=True)) for suite in ("", "general")
    )
    tokens = TASK.answer_tokens(plan.config)
    seconds = answer_seconds(plan.model_shape(), plan.training_setup, None, 40, tokens)
    assert plan.duration_seconds.value - without.duration_seconds.value == pytest.approx(2 * seconds)


def test_a_prompt_ends_before_the_last_answer(loaded, tmp_path):  # noqa: F811
    config = loaded({"data.eval_fraction": 0}, conversations(4), scratch=True).config
    data, rows = prepared(config, tmp_path)
    tokenizer = TASK.load_tokenizer(config, data)
    model = TASK.build_model(config, data, tokenizer, torch.float32, torch.device("cpu"), print)
    TASK.set_generation(config, model, tokenizer)
    prompts = [TASK.prompt_of(config, model, tokenizer, row) for row in rows]
    assert [one.reference for one in prompts] == ["Yes.", "The goat.", "The cow.", "Yes."]
    assert all(one.has_end for one in prompts)
    assert tokenizer.decode(prompts[1].ids).endswith("Who is number 1?<|im_end|>\n<|im_start|>assistant\n")
