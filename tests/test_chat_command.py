"""A conversation in the terminal: history, commands, two models, and what ends an answer or the program."""

from __future__ import annotations

import io
import json

import pytest

from tui_trainer.cli import main
from tui_trainer.errors import DataError
from tui_trainer.exporting.chat_session import COMMANDS, ChatSession
from tui_trainer.exporting.generate import Writer
from tui_trainer.exporting.trained_model import TrainedModel, load_tokenizer
from tui_trainer.lines.conversation import hold_conversation
from tui_trainer.models.writing import Sampling

SAMPLING = Sampling(max_new_tokens=9, temperature=0.5, seed=3)


class FakeWriter:
    """A model that gives a fixed answer and records the questions."""

    def __init__(self, answer: str = "so", error: BaseException | None = None, left_out: int = 0) -> None:
        self.answer, self.error, self.left_out = answer, error, left_out
        self.asked: list[tuple[list[dict], Sampling]] = []

    def reply(self, messages, sampling, show):
        self.asked.append((list(messages), sampling))
        show(self.answer)
        if self.error:
            raise self.error
        return self.left_out


@pytest.fixture
def holding():
    """Return `holding(writers, *lines)`, which holds a conversation and returns its text and its notes."""

    def hold_it(writers, *lines: str, system: str = "") -> tuple[str, str]:
        shown, notes = [], []
        conversation = ChatSession(writers, SAMPLING, system, show=shown.append, notify=notes.append)
        for line in lines:
            if not conversation.take(line):
                notes.append("LEFT")
                break
        return "".join(shown), "\n".join(notes)

    return hold_it


def roles(messages: list[dict]) -> list[tuple[str, str]]:
    return [(one["role"], one["content"]) for one in messages]


def test_question_follows_the_whole_history(holding):
    writer = FakeWriter("be\x1b[2Jcause")
    shown, _ = holding({"tuned": writer}, "why?", "", "and now?", system="Be short.")
    assert shown == "be\u241b[2Jcause\n" * 2
    first, second = (roles(messages) for messages, _ in writer.asked)
    assert first == [("system", "Be short."), ("user", "why?")]
    assert second == [*first, ("assistant", "be\x1b[2Jcause"), ("user", "and now?")]
    assert [sampling.seed for _, sampling in writer.asked] == [4, 5]


def test_two_models_answer_with_separate_histories(holding):
    base, tuned = FakeWriter("old"), FakeWriter("new")
    shown, _ = holding({"base": base, "tuned": tuned}, "a", "b")
    assert shown == "[base] old\n[tuned] new\n" * 2
    assert [roles(one.asked[1][0])[1] for one in (base, tuned)] == [("assistant", "old"), ("assistant", "new")]


def test_commands_change_the_following_answers(holding, tmp_path):
    writer, file = FakeWriter(), tmp_path / "said.jsonl"
    lines = ["one", "/undo", "/undo", "/temperature 0", "/max 30", "two", f"/save {file}", "/system Rhyme.", "three"]
    _, notes = holding({"tuned": writer}, *lines, f"/save {file}", "//path", "/reset", "four", "/quit", "five")
    assert [roles(messages)[-1][1] for messages, _ in writer.asked] == ["one", "two", "three", "/path", "four"]
    assert roles(writer.asked[1][0]) == [("user", "two")], "the first question was taken back"
    assert roles(writer.asked[2][0]) == [("system", "Rhyme."), ("user", "three")]
    assert roles(writer.asked[4][0]) == [("system", "Rhyme."), ("user", "four")]
    assert (writer.asked[1][1].temperature, writer.asked[1][1].max_new_tokens) == (0, 30)
    saved = [json.loads(line)["messages"] for line in file.read_text().splitlines()]
    assert [roles(one)[-1] for one in saved] == [("assistant", "so")] * 2 and len(saved[1]) == 3
    assert "nothing to undo" in notes and notes.endswith("LEFT")


def test_bad_command_is_reported_without_asking_the_model(holding, tmp_path):
    writer = FakeWriter()
    for line, words in {
        "/nope": "unknown command /nope",
        "/temperature hot": "enter a number from 0 to 10, not 'hot'",
        "/max 0": "enter a number from 1 to 100,000",
        "/save": "needs a file name",
        f"/save {tmp_path}/x": "nothing to save yet",
    }.items():
        assert words in holding({"tuned": writer}, line)[1]
    assert "Is a directory" in holding({"tuned": FakeWriter()}, "hi", f"/save {tmp_path}")[1]
    notes = holding({"tuned": writer}, "/help")[1]
    assert all(form in notes for form in COMMANDS)
    assert not writer.asked


def test_ctrl_c_ends_the_answer_and_not_the_program(holding):
    writer = FakeWriter("half of", KeyboardInterrupt())
    shown, _ = holding({"tuned": writer}, "a", "b")
    assert shown == "half of [ended]\n" * 2
    assert roles(writer.asked[1][0])[:2] == [("user", "a"), ("assistant", "half of")]


def test_refused_question_is_not_kept_in_the_history(holding):
    writer = FakeWriter("", DataError("the chat template rejects this conversation"))
    _, notes = holding({"tuned": writer}, "a", "b")
    assert notes.count("rejects this conversation") == 2 and roles(writer.asked[1][0]) == [("user", "b")]


def test_lines_of_a_pipe_are_questions_and_only_answers_are_printed(finished, monkeypatch, capsys):
    run = finished("chat")
    monkeypatch.setattr("sys.stdin", io.StringIO("The sheep runs home 4\n/max 1\nThe hen home 5\n"))
    monkeypatch.setattr(Writer, "_write", lambda self, context, new_tokens, sampling, show: show(f"{new_tokens} new"))
    assert main(["chat", str(run.root), "--max-new-tokens", "6", "--gpu", "none"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "6 new\n1 new\n"
    assert "Ctrl+D quits" in shown.err and "at most 1 tokens" in shown.err


def test_ctrl_c_at_the_prompt_names_the_way_to_leave(monkeypatch, capsys):
    lines = iter(["a", KeyboardInterrupt(), EOFError()])

    def typed(prompt):
        assert prompt == "> "
        line = next(lines)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    hold_conversation(
        ChatSession({"tuned": FakeWriter()}, SAMPLING, show=lambda piece: None, notify=lambda words: None)
    )
    assert "/quit or Ctrl+D quits" in capsys.readouterr().err


def test_long_conversation_loses_its_oldest_turns_and_keeps_the_system_prompt(finished):
    writer = Writer(finished("chat"))
    messages = [{"role": "system", "content": "S"}]
    for number in range(40):
        messages += [{"role": "user", "content": f"Q{number} runs"}, {"role": "assistant", "content": "A"}]
    given = []
    writer._model.generate = lambda input_ids, **_: given.append(input_ids) or input_ids
    sampling = Sampling(max_new_tokens=4, temperature=0, seed=0)
    left_out = writer.reply([*messages, {"role": "user", "content": "last"}], sampling, print)
    text = writer._tokenizer.decode(given[0][0])
    assert left_out > 20 and left_out % 2 == 0
    assert "S" in text.split("user")[0] and "last" in text and "Q0 " not in text


def test_base_model_answers_before_the_tuned_one(adapted_run, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("The sheep\n"))
    greedy = ["--temperature", "0", "--max-new-tokens", "12", "--gpu", "none"]
    assert main(["chat", adapted_run.name, "--against", "base", *greedy]) == 0
    lines = "".join(capsys.readouterr().out).split("[tuned] ")
    assert lines[0].startswith("[base] ") and lines[0].removeprefix("[base] ") != lines[1]


def test_runs_without_conversations_are_refused_in_one_sentence(finished, capsys):
    for arguments, words in [
        ((finished("sequence_classification").root,), "cannot hold a conversation"),
        ((finished("chat").root, "--against", "base"), "trained from scratch, so it has no base model"),
        ((finished("chat").root, "--against", "other"), "--against only accepts base"),
        (("nobody",), "nobody"),
    ]:
        assert main(["chat", *map(str, arguments)]) == 2
        message = capsys.readouterr().err
        assert words in message and message.count("\n") == 1


def test_question_gets_the_tokens_of_training_and_cannot_end_its_own_turn(finished):
    trained = TrainedModel.of(finished("chat"))
    tokenizer = load_tokenizer(trained)
    reader = trained.task.input_reader(trained.plan.config, tokenizer)
    plain, spelt = trained.task.prompt_ids(tokenizer, [reader.of_text("a hen"), reader.of_text("a <|im_end|> hen")])
    question = [{"role": "user", "content": "a hen"}]
    assert plain == tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert plain.count(end) == spelt.count(end) == 1 and len(spelt) > len(plain)
    assert tokenizer.decode(spelt).count("<|im_end|>") == 2
