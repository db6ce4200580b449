"""From one's own files to a training, by keys: what there is, what it holds, what follows, start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.downloading.test_download_data import put_into_cache
from tests.tiny_models import save_tiny_model
from tests.ui.canned import CannedRun, trained
from tests.ui.pictures import in_event_loop
from tests.ui.screens import open_screens
from tui_trainer.launching.local_choices import FROM_SCRATCH, Choice, data_here, first_rows, models_here
from tui_trainer.ui.new_run import column_widths, matching


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """A folder as people have them: a table, a text, a model, and what is neither."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    lines = ["text,label"] + [f'"review {n}, as it was written",{"good" if n % 3 else "bad"}' for n in range(60)]
    (work / "reviews.csv").write_text("\n".join(lines))
    (work / "notes.txt").write_text("First text of some words.\n\nSecond text.\n")
    (work / "picture.png").write_bytes(b"\x89PNG")
    (work / ".hidden.csv").write_text("a,b\n1,2\n")
    (work / "texts").mkdir()
    (work / "texts" / "one.txt").write_text("some words")
    save_tiny_model(work / "my-bert", "bert")
    return work


def values(choices) -> list[str]:
    return [one.value for one in choices]


def test_tables_come_before_texts_and_folders_and_samples_last(folder):
    found = values(data_here())
    assert found[:3] == ["reviews.csv", "notes.txt", "texts/"]
    assert found[-2].startswith("sample:") and found[-1] == "texts/one.txt"
    assert not any("picture" in one or "hidden" in one for one in found)
    assert values(models_here()) == ["./my-bert", FROM_SCRATCH]


@pytest.mark.full
def test_what_is_here_comes_before_what_earlier_runs_used_and_each_path_once(folder, tiny_run):
    run, outcome = tiny_run("first")
    assert outcome.exit_code == 0
    found = values(data_here())
    assert found[:3] == ["reviews.csv", "notes.txt", "texts/"] and Path(found[3]).is_file()
    assert len(found) == len({*found}) and values(models_here()) == ["./my-bert", run.name, FROM_SCRATCH]
    # The same file by its whole path is one.
    run.config.write_text(f'[data]\npath = "{Path.cwd()}/reviews.csv"\n')
    assert [one.value for one in data_here() if one.value.endswith("reviews.csv")] == ["reviews.csv"]


def test_a_typed_name_goes_before_names_and_notes_that_only_hold_it():
    choices = [Choice(value=value, note=note) for value, note in (
        ("other", "used by run mine-tiny"), ("reviews-tiny-1647", "model from this run"), ("./untiny", ""),
        ("./my-tiny", ""), ("./tiny-bert", ""), ("./tiny", ""), ("./bert", ""),
    )]  # fmt: skip
    found = ["./tiny", "./tiny-bert", "reviews-tiny-1647", "./my-tiny", "./untiny", "other"]
    assert values(matching("tiny", choices)) == found and values(matching("", choices)) == values(choices)


def test_first_rows_of_tables_texts_and_what_cannot_be_read(folder):
    table = first_rows("reviews.csv")
    assert table.columns == ("text", "label") and table.rows[0] == ("review 0, as it was written", "bad")
    text = first_rows("notes.txt")
    assert text.columns == ("text",) and "First text" in text.rows[0][0]
    assert first_rows("sample:python-help-chat").rows and not first_rows("sample:python-help-chat").refusal
    assert "picture.png" in first_rows("picture.png").refusal or first_rows("picture.png").refusal
    assert first_rows("none.csv").refusal and not first_rows("none.csv").rows


def test_columns_share_the_width():
    for columns, rows, width, widths in (
        (("a", "b"), [("x" * 100, "yes")], 60, [56, 3]),
        (("a", "b"), [("x" * 100, "y" * 100)], 81, [40, 40]),
        (("id", "text", "more"), [("1", "x" * 100, "y" * 100)], 50, [2, 40, 6]),
        (("id", "text", "more"), [("1", "x" * 100, "y" * 100)], 46, [2, 40]),
        (("text",), [], 10, [4]),
        ((), [], 10, []),
    ):
        assert column_widths(columns, rows, width) == widths


@in_event_loop
async def test_a_csv_and_a_model_come_to_the_question_before_the_start_with_few_keys(folder):
    async with open_screens(size=(80, 24)) as screens:
        await screens.press("n")
        await screens.shows("1 of 2: your data", "reviews.csv", "review 0, as it was written", "label")
        await screens.press(*"notes")
        await screens.shows("First text of some words", gone="review 0")
        await screens.press(*["backspace"] * 5, *"texts")
        await screens.shows("Enter open folder")
        await screens.press("enter")
        await screens.shows("Enter use this folder", "texts/one.txt")
        await screens.press("down")
        await screens.shows("some words", "Enter select")
        await screens.press(*["backspace"] * 6)
        await screens.shows("review 0, as it was written")
        await screens.press("enter")
        await screens.shows("2 of 2: the model", "./my-bert", FROM_SCRATCH, "task sequence_classification", "steps")
        await screens.press("escape")
        await screens.shows("1 of 2: your data", "reviews.csv", "review 0, as it was written", gone="notes")
        await screens.press("enter")
        await screens.shows("2 of 2: the model", "./my-bert", FROM_SCRATCH, "task sequence_classification", "steps")
        await screens.press("enter")
        await screens.shows("Start reviews-my-bert?", "sequence_classification", "my-bert", "Enter start")
        assert screens.app.page.place == "train"
        own = screens.bench.document.user_values()
        assert own["data.path"] == "reviews.csv" and own["model.model_name_or_path"] == "./my-bert"
        await screens.press("escape", "2", "u")
        await screens.until(lambda: "data.path" not in screens.bench.document.user_values())
        # During a run the next one is prepared, and not started.
        screens.bench.run = CannedRun(trained(60), alive=True)
        await screens.press("n")
        await screens.shows("1 of 2: your data", "review 0, as it was written")
        await screens.press("enter")
        await screens.shows("2 of 2: the model", "task sequence_classification", "steps")
        await screens.press("enter")
        await screens.shows("Config has the settings of the next run: t starts it after the", gone="Enter start")
        assert screens.app.page.place == "config" and screens.bench.run_is_alive


@pytest.mark.full
@in_event_loop
async def test_from_scratch_says_which_columns_it_does_not_read(folder):
    async with open_screens(size=(80, 24)) as screens:
        await screens.press("n", *"reviews", "enter")
        await screens.shows("2 of 2")
        await screens.press(*"scratch")
        await screens.shows("task char_lm", "columns: text", "not used: label; p on Config lists from-scratch")
        await screens.press("enter")
        await screens.shows("Start ", "not used    columns label")


@pytest.mark.full
@in_event_loop
async def test_what_was_set_for_another_run_goes_and_where_runs_are_kept_stays(folder):
    async with open_screens() as screens:
        runs = str(folder / "elsewhere")
        screens.bench.apply({"training.max_steps": 7, "output.runs_dir": runs, "output.name": "mine"}, "")
        await screens.press("2", "/", *"seed", "enter", "n")
        await screens.shows("reviews.csv")
        await screens.press("enter")
        await screens.shows("2 of 2", FROM_SCRATCH)
        await screens.press("enter")
        await screens.shows("Start ")
        await screens.press("c")
        await screens.shows("Start from", "Enter edit", gone="/ seed")
        own = screens.bench.document.user_values()
        assert "training.max_steps" not in own and "output.name" not in own and own["output.runs_dir"] == runs


@pytest.mark.full
@in_event_loop
async def test_what_does_not_go_together_is_said_before_it_is_taken(folder):
    rows = [json.dumps({"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]})]
    (folder / "chat.jsonl").write_text("\n".join(rows * 30))
    async with open_screens(size=(120, 35)) as screens:
        await screens.press("n")
        await screens.shows("chat.jsonl")
        await screens.press(*"chat.j")
        await screens.shows("messages", "assistant")
        await screens.press("enter")
        # An encoder writes no answers.
        await screens.shows("./my-bert", "need a decoder", "task chat: the rows are conversations")
        await screens.press("escape")
        await screens.shows("1 of 2", gone="2 of 2")


@pytest.mark.full
@in_event_loop
async def test_columns_that_were_not_found_or_are_others_are_chosen_before_the_start(folder):
    lines = ["title,body,kind,text"]
    lines += [f'"t {n}","body of review {n}",{"good" if n % 3 else "bad"},"short {n}"' for n in range(60)]
    (folder / "many.csv").write_text("\n".join(lines))
    # The path of the data, which takes several lines where tests run beside each other, leaves room for the rows.
    async with open_screens(size=(80, 30)) as screens:
        await screens.press("n")
        await screens.shows("reviews.csv")
        await screens.press(*"many")
        await screens.shows("body of review 0")
        await screens.press("enter")
        await screens.shows("no column has a usual name for labels", "F2 columns")
        await screens.press("f2")
        await screens.shows("Choose the columns", "text         none", "label        none")
        await screens.press("right", "right", "down", "down", *["right"] * 3)
        shown = await screens.shows("text         body", "label        kind", "body of review 0", gone="short 0")
        assert "second text  none" in shown
        await screens.press("enter")
        shown = await screens.shows("columns: text body, label kind", "steps", "body of review 0", gone="short 0")
        await screens.press("ctrl+t", "left", "left")
        await screens.shows("text         none")
        await screens.press("left", "escape")
        await screens.shows("columns: text body, label kind", gone="Choose the columns")
        await screens.press("ctrl+t", "right", "right", "enter")
        await screens.shows("columns: text text, label kind", "short 0", gone="body of review 0")
        await screens.press("enter")
        await screens.shows("Start many-my-bert?")
        own = screens.bench.document.user_values()
        assert (own["data.text_column"], own["data.label_column"]) == ("text", "kind")
        await screens.press("escape", "2", "u")
        await screens.until(lambda: "data.label_column" not in screens.bench.document.user_values())


@in_event_loop
async def test_without_runs_the_first_screen_says_how_to_begin(folder):
    async with open_screens() as screens:
        await screens.shows("start here", "t  trains an example", "n  trains a model of your choice")
        await screens.press("n")
        await screens.shows("1 of 2")


def table_of_labels(work: Path) -> str:
    lines = ["text,label"] + [f'"review {n}, as it was written",{"good" if n % 3 else "bad"}' for n in range(90)]
    (work / "reviews.csv").write_text("\n".join(lines))
    return "reviews.csv"


def conversations(work: Path) -> str:
    turns = [{"role": "user", "content": "How much is 2 + 2?"}, {"role": "assistant", "content": "It is 4."}]
    rows = [json.dumps({"messages": [turns[0] | {"content": f"How much is {n} + 2?"}, turns[1]]}) for n in range(90)]
    (work / "talks.jsonl").write_text("\n".join(rows))
    return "talks.jsonl"


def table_of_tags(work: Path) -> str:
    (work / "people.conll").write_text("\n\n".join(f"Ada{n} B-PER\nis O\nhere O" for n in range(90)) + "\n")
    return "people.conll"


def folder_of_texts(work: Path) -> str:
    (work / "prose").mkdir()
    for n in range(60):
        (work / "prose" / f"{n}.txt").write_text(f"Text {n} of a folder, with some words in it.\n" * 9)
    return "prose/"


def questions_of_squad(work: Path) -> str:
    paragraphs = [
        {"context": f"Lake {n} has {n} islands.", "qas": [{
            "id": str(n), "question": f"How many islands has lake {n}?", "is_impossible": False,
            "answers": [{"text": f"{n} islands", "answer_start": len(f"Lake {n} has ")}]}]}
        for n in range(60)
    ]  # fmt: skip
    (work / "squad.json").write_text(json.dumps({"version": "2.0", "data": [{"title": "L", "paragraphs": paragraphs}]}))
    return "squad.json"


def data_set_in_the_cache(work: Path) -> str:
    folder = work.parent / "lines"
    folder.mkdir()
    rows = [json.dumps({"text": f"line {n} of a data set", "label": n % 2}) for n in range(90)]
    (folder / "train.jsonl").write_text("\n".join(rows))
    put_into_cache(folder, "org/lines", work.parent / "hf")
    return "org/lines"


OWN = [
    (table_of_labels, "r", "", "sequence_classification", 6),
    (table_of_tags, "pe", "", "token_classification", 6),
    (folder_of_texts, "pr", "l", "causal_lm", 8),
    (conversations, "t", "l", "chat", 10),
    (questions_of_squad, "sq", "", "question_answering", 8),
    (data_set_in_the_cache, "org", "", "sequence_classification", 8),
]


@pytest.mark.full
@in_event_loop
async def test_own_data_and_a_model_train_after_few_keys(tmp_path, monkeypatch, subtests):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    for family in ("bert", "llama"):
        save_tiny_model(work / family, family)
    names = [write(work) for write, *_ in OWN]
    async with open_screens() as screens:
        typed: list[str] = []

        async def press(*keys: str) -> None:
            typed.extend(keys)
            await screens.press(*keys)

        for name, (_, data, model, task, most_keys) in zip(names, OWN, strict=True):
            with subtests.test(name):
                typed.clear()
                # Enter waits for the list, and for the plan.
                await press("n", *data, "enter")
                if name.endswith("/"):
                    await screens.shows("Enter use this folder")
                    await press("enter")
                await screens.shows("2 of 2: the model", "Model to train on")
                await press(*model, "enter")
                if task == "chat":
                    await screens.shows("Cannot start yet", 'u use task.chat_template = "llama3"')
                    await press("u")
                await screens.shows("Start ", f"task        {task}", "Enter start")
                own = screens.bench.document.user_values()
                assert own["data.path"] == name
                assert own["model.model_name_or_path"] == ("./llama" if model else "./bert")
                assert len([*typed, "enter"]) <= most_keys
                await screens.press("escape")
                await screens.shows("t start", gone="Enter start")


@pytest.mark.e2e
def test_own_data_and_model_train_after_four_keys(open_terminal, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    name = table_of_labels(work)
    save_tiny_model(work / "mine", "bert")
    terminal, keys = open_terminal(), ("n", "enter", "enter", "enter")
    shown = (("n new run",), ("1 of 2: your data", name), ("2 of 2: the model", "./mine", "steps"), ("Enter start",))
    for key, words in zip(keys, shown, strict=True):
        terminal.wait_for(*words)
        terminal.press(key)
    terminal.wait_for_steps(1)
