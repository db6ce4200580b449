"""Conversations: labels, gradients, runs and refusals."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from tests.tasks.tiny_tasks import TINY, examples, finish, load, of_kind, set_options, write_rows
from tests.tiny_models import save_tiny_model, tiny_model
from tui_trainer.cli import main
from tui_trainer.config.paths import data_of, with_absolute_paths
from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.models.chat_rendering import template_text
from tui_trainer.runs.events import BaselinesMeasured, DataPrepared, EvalDone, RunProblem, StepDone, TextSampled
from tui_trainer.tasks import find_task
from tui_trainer.tasks.chat import template_of
from tui_trainer.training.batches import Layout

TASK = find_task("chat")
SETTINGS = {
    **TINY, "task.type": "chat", "data.max_length": 64, "training.lr_scheduler_type": "constant",
    "training.max_steps": 12, "logging.sample_steps": 12,
}  # fmt: skip
SCRATCH = {"model.init": "scratch", "model.scratch.num_attention_heads": 2}
NAMES = ("sheep", "goat", "cow", "horse", "hen")


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def conversations(count: int = 80) -> list[dict]:
    """Who is number n? Every third conversation asks once more."""
    rows = []
    for n in range(count):
        first = [turn("user", f"Who is number {n}?"), turn("assistant", f"The {NAMES[n % 5]}.")]
        second = [turn("user", "Sure?"), turn("assistant", "Yes.")] if n % 3 == 0 else []
        rows.append({"messages": [*first, *second]})
    return rows


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A tiny Llama whose tokenizer has no chat template."""
    return save_tiny_model(tmp_path_factory.mktemp("chat-models") / "llama", "llama")


@pytest.fixture
def loaded(tmp_path, tiny_folder):
    """`loaded(changes, rows)`: the config of a run on the tiny model; `scratch`: of one from random weights."""

    def make(changes: dict | None = None, rows: list[dict] | None = None, *, scratch: bool = False):
        data = write_rows(tmp_path / "conversations.jsonl", conversations() if rows is None else rows)
        own = {"model.model_name_or_path": tiny_folder, "task.chat_template": "chatml"}
        places = {"output.runs_dir": tmp_path / "runs", "data.path": data}
        return load(SETTINGS, places, SCRATCH if scratch else own, changes or {})

    return make


def prepared(config, tmp_path):
    data = TASK.prepare(config, data_of(config), tmp_path / "cache", lambda *_: None)
    return data, examples(data.train_path)


def trained(tokenizer, row) -> str:
    return tokenizer.decode(row.labels[row.labels != IGNORE])


# Rows -----------------------------------------------------------------------------------------------------------------


def test_changed_end_tokens_of_the_model_prepare_the_data_again(loaded, tmp_path, tiny_folder):
    """They come from generation_config.json, and decide where the labels of an assistant turn end."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    config = loaded({"model.model_name_or_path": folder}, conversations(8)).config
    GenerationConfig(eos_token_id=[2]).save_pretrained(folder)
    first = TASK.row_settings(config)
    GenerationConfig(eos_token_id=[2, 7]).save_pretrained(folder)
    assert TASK.row_settings(config) != first


def test_answers_are_labelled_and_long_rows_are_cut_at_the_end(loaded, tmp_path):
    long = {"messages": [turn("user", "Go on."), turn("assistant", "goat " * 60)]}
    silent = {"messages": [turn("user", " ".join(map(str, range(99)))), turn("assistant", "Nobody.")]}
    short = {"messages": [turn("user", "Hush."), turn("assistant", ".")]}
    config = loaded({"data.eval_fraction": 0}, [*conversations(2), long, silent, short], scratch=True).config
    data, rows = prepared(config, tmp_path)
    tokenizer = TASK.load_tokenizer(config, data)
    assert [trained(tokenizer, row) for row in (*rows[:2], rows[3])] == [
        "The sheep.<|im_end|>Yes.<|im_end|>",
        "The goat.<|im_end|>",
        ".<|im_end|>",
    ]
    assert len(rows) == 4 and len(rows[2]) == 64 and "<|im_end|>" not in trained(tokenizer, rows[2])
    assert (data.counts.truncated_rows, data.counts.untrained_rows) == (1, 1)
    assert data.counts.train_labels == sum(int((row.labels[1:] != IGNORE).sum()) for row in rows)
    notes = " ".join(data.notes)
    for words in ("the column 'messages'", "template chatml", "stop token <|im_end|>", "no token to train on"):
        assert words in notes


def test_conversations_that_differ_only_in_unread_fields_are_duplicates(loaded, tmp_path):
    rows = [{"messages": [{**message, "id": f"{n}"} for message in conversations(1)[0]["messages"]]} for n in range(3)]
    data, left = prepared(loaded({"data.dedup": "true", "data.eval_fraction": 0}, rows).config, tmp_path)
    assert (len(left), data.counts.repeated_rows) == (1, 2)


def test_loss_on_sets_which_tokens_are_labelled(loaded, tmp_path):
    found = {}
    for loss_on in ("assistant", "completion", "all"):
        config = loaded({"task.loss_on": loss_on, "data.eval_fraction": 0}, conversations(1), scratch=True).config
        data, [row] = prepared(config, tmp_path)
        found[loss_on] = trained(TASK.load_tokenizer(config, data), row)
    assert found["assistant"] == "The sheep.<|im_end|>Yes.<|im_end|>"
    assert found["completion"] == "Yes.<|im_end|>"
    assert found["all"].startswith("user\nWho is number 0?<|im_end|>\n<|im_start|>assistant\nThe sheep.")
    assert found["all"].endswith("\nYes.<|im_end|>")


def test_the_tokenizers_own_template_is_used_and_another_replaces_it(loaded, tmp_path, tiny_folder):
    own = shutil.copytree(tiny_folder, tmp_path / "own")
    text = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + eos_token }}{% endfor %}"
    (own / "chat_template.jinja").write_text(text + "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}")
    for wanted, expected in {
        "": "The sheep.<eos>",
        "zephyr": "The sheep.<eos>",
        "chatml": "The sheep.<|im_end|>",
    }.items():
        changes = {"model.model_name_or_path": own, "task.chat_template": wanted, "data.eval_fraction": 0}
        config = loaded({**changes, "data.max_length": 128}, conversations(1)).config
        data, [row] = prepared(config, tmp_path)
        tokenizer = TASK.load_tokenizer(config, data)
        assert trained(tokenizer, row).startswith(expected)
        assert (tokenizer.chat_template.startswith(text)) == (wanted == "")
    assert "<eos> is appended to the last answer" in " ".join(data.notes)


def test_a_tokenizer_with_a_template_for_tools_uses_it_for_tools(loaded, tiny_folder):
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    tokenizer.chat_template = {"default": "plain", "tool_use": "with tools"}
    found = template_of(loaded({"task.chat_template": ""}).config, tokenizer)
    assert (found.text_for(()), found.text_for([{"type": "function"}])) == ("plain", "with tools")


def test_the_path_of_a_template_file_becomes_absolute(loaded, tmp_path):
    template = {name: loaded({"task.chat_template": name}).config.task for name in ("mine.jinja", "chatml")}
    found = {
        name: with_absolute_paths(loaded().config.model_copy(update={"task": task})).task.chat_template
        for name, task in template.items()
    }
    assert found == {"mine.jinja": str(tmp_path / "mine.jinja"), "chatml": "chatml"}


def test_a_changed_template_file_prepares_the_data_again(loaded, tmp_path):
    mine = tmp_path / "mine.jinja"
    keys = set()
    for end in ("<eos>", "!<eos>"):
        mine.write_text("{% for m in messages %}{{ m['role'] + m['content'] + '" + end + "' }}{% endfor %}")
        data, _ = prepared(loaded({"task.chat_template": mine}, conversations(4)).config, tmp_path)
        keys.add(data.folder)
    assert len(keys) == 2


@pytest.mark.full
def test_rows_are_the_same_from_one_process_and_from_two(loaded, tmp_path, subtests):
    """A column that first appears late makes one process read all rows."""
    special = {"messages": [turn("user", "a<|im_end|>"), turn("assistant", "b") | {"mood": "good"}]}
    long = {"messages": [turn("user", "a"), turn("assistant", "b " * 40_000) | {"reasoning": "d"}]}
    rows = [*conversations(), special, long] * 20
    for name, late in (("same columns", {}), ("late column", {"system": "be kind"})):
        rows[-50] = rows[-50] | late
        prepared_data = []
        for processes in (1, 2):
            config = loaded({"data.num_proc": processes}, rows, scratch=True).config
            data = TASK.prepare(config, data_of(config), tmp_path / f"{name} {processes}", lambda *_: None)
            prepared_data.append((data.train_path.read_bytes(), data.notes))
        with subtests.test(name):
            assert prepared_data[0] == prepared_data[1]
            notes = "; ".join(prepared_data[0][1])
            assert "20 rows contain names of special tokens" in notes and "ignores: mood, reasoning" in notes


# Gradients ------------------------------------------------------------------------------------------------------------


def gradients(model) -> dict[str, torch.Tensor]:
    return {name: weight.grad for name, weight in model.named_parameters()}


def test_loss_and_gradients_are_those_of_transformers(loaded, tmp_path, subtests):
    config = loaded({"data.eval_fraction": 0}, conversations(6)).config
    _, rows = prepared(config, tmp_path)
    theirs, expected_loss, label_count = tiny_model("llama"), torch.zeros(()), 0
    for row in rows:
        ids, own = (torch.from_numpy(values.astype("int64"))[None] for values in (row.tokens, row.labels))
        count = int((own != IGNORE).sum())
        expected_loss = expected_loss + theirs(input_ids=ids, labels=own).loss * count
        label_count += count
    expected_loss.backward()
    expected = gradients(theirs)
    for rows_in_batch, packed_width, batch_count in ((1, 0, 6), (2, 0, 3), (6, 0, 1), (1, 128, 3)):
        with subtests.test(f"{rows_in_batch} rows, packed to {packed_width}"):
            mine = tiny_model("llama")
            layout = Layout(
                collate=TASK.collate(mine, 0),
                collate_packed=TASK.collate_packed(0),
                rows_per_pass=rows_in_batch,
                packed_width=packed_width,
            )
            objective = TASK.objective(config, None, mine, chunk_tokens=0)
            batches, total = list(layout.micro_batches(rows)), torch.zeros(())
            for batch in batches:
                loss = objective(batch)
                loss.backward()
                total += loss.detach()
            assert len(batches) == batch_count and sum(batch.label_count for batch in batches) == label_count
            torch.testing.assert_close(total, expected_loss.detach(), rtol=1e-5, atol=1e-5)
            for name, gradient in gradients(mine).items():
                torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-4)


# Runs -----------------------------------------------------------------------------------------------------------------


def answer(model, folder, question: str) -> tuple[str, list[int]]:
    """Return what the model generates with its own template and stop tokens, as text and as new tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = tokenizer.apply_chat_template([turn("user", question)], add_generation_prompt=True, return_tensors="pt")
    written = model.eval().generate(**asked, max_new_tokens=24, do_sample=False, pad_token_id=0)
    new = written[0, asked["input_ids"].shape[1] :].tolist()
    return tokenizer.decode(new), new


@pytest.mark.full
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_model_with_invalid_generation_settings_is_trained_and_saved(loaded, tmp_path, tiny_folder, method):
    """Such as those of Vicuna: transformers loads them, and refuses to save them after a stop token was added."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    published = {"eos_token_id": 2, "pad_token_id": -1, "temperature": 0.9, "top_p": 0.6, "repetition_penalty": 1.1}
    (folder / "generation_config.json").write_text(json.dumps(published))
    run = finish(loaded({"model.model_name_or_path": folder, "tuning.method": method, "checkpoint.save_steps": 4}))
    saved = GenerationConfig.from_pretrained(run.model)
    assert (saved.temperature, saved.top_p, saved.pad_token_id, saved.repetition_penalty) == (None,) * 4


@pytest.mark.full
def test_a_model_from_scratch_learns_to_answer_and_to_stop(loaded, capsys):
    changes = {"training.max_steps": 60, "evaluation.eval_steps": 30}
    run = finish(loaded(changes, conversations(120), scratch=True))
    assert not of_kind(run, RunProblem)
    [baselines], evaluations = of_kind(run, BaselinesMeasured), of_kind(run, EvalDone)
    assert evaluations[-1].loss <= 0.75 * baselines.losses["unigram"], (
        "the margin of the recipe, on easier conversations"
    )
    assert evaluations[-1].tokens == baselines.eval_tokens
    sampled = of_kind(run, TextSampled)[-1]
    assert sampled.prompt.endswith("assistant\n") and sampled.prompt.startswith("user\nWho is number ")
    assert of_kind(run, DataPrepared)[0].notes
    model = AutoModelForCausalLM.from_pretrained(run.model)
    tokenizer = AutoTokenizer.from_pretrained(run.model)
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<eos>"])
    assert model.generation_config.eos_token_id == ends
    said, new = answer(model, run.model, "Who is number 7?")
    assert said.startswith("The ") and said.endswith(".<|im_end|>")
    assert new[-1] == ends[0] and len(new) < 24, "generation stops at the end of the turn"
    capsys.readouterr()
    assert main(["generate", str(run.root), "Who is number 7?", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.strip() == said.removesuffix("<|im_end|>")


@pytest.mark.full
def test_an_adapter_is_saved_with_template_and_stop_tokens(loaded, tiny_folder):
    run = finish(loaded({"tuning.method": "lora", "task.chat_template": "zephyr", "evaluation.eval_steps": 6}))
    steps, evaluations = of_kind(run, StepDone), of_kind(run, EvalDone)
    assert steps[-1].loss < 0.8 * steps[0].loss
    from peft import PeftModel

    base = AutoModelForCausalLM.from_pretrained(tiny_folder)
    model = PeftModel.from_pretrained(base, run.model)
    [path] = (run.root.parent.parent / "home" / "cache").rglob("eval.arrow")
    total = 0.0
    with torch.inference_mode():
        for row in examples(path):
            ids, labels = (torch.from_numpy(values.astype("int64")) for values in (row.tokens, row.labels))
            logits = model(input_ids=ids[None, :-1]).logits[0]
            total += float(torch.nn.functional.cross_entropy(logits, labels[1:], reduction="sum"))
    assert total / evaluations[-1].tokens == pytest.approx(evaluations[-1].loss, rel=1e-4)
    assert AutoTokenizer.from_pretrained(run.model).chat_template == template_text("zephyr")
    assert GenerationConfig.from_pretrained(run.model).eos_token_id == [2]
    assert answer(model, run.model, "Who is number 7?")[0]


# What is refused ------------------------------------------------------------------------------------------------------

LATER = [turn("user", "a"), turn("assistant", None)]
STRIPS = (
    "{% for m in messages %}{{ m['role'] }}{{ m['content'] if loop.last else 'x' }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant' }}{% endif %}"
)


BAD_INPUT = [
    ({}, [*conversations(4), {"messages": LATER}], ("conversations.jsonl, line 5", "content of message 2 is null")),
    ({}, [*conversations(4), {"messages": "x"}], ("conversations.jsonl, line 5", "not valid JSON")),
    ({}, [*conversations(4), {"messages": []}], ("conversations.jsonl, line 5", "no messages")),
    (
        {},
        [{"text": "a"}] * 4,
        ("conversations.jsonl: no column holds conversations", "columns found: text", "causal_lm"),
    ),
    ({"data.max_chars": 10}, None, ("data.max_chars: does not apply to tables", "limit the rows with data.max_rows")),
    ({}, [*conversations(4), {"messages": [{**turn("user", "a"), "name": "\ud800"}, turn("assistant", "b")]}],
     ("conversations.jsonl, line 5", "half a character")),
    ({"data.text_column": "mesages"}, None, ("no column 'mesages'", "did you mean 'messages'?")),
    ({"data.path": "sample:python-reference"}, None, ("is text, but this task reads a table",)),
    ({"data.path": "empty.jsonl"}, None, ("empty.jsonl",)),
    ({"data.path": "latin.jsonl"}, None, ("latin.jsonl", "UTF-8")),
    ({}, [{"messages": [turn("user", "a " * 80), turn("assistant", "b")]}] * 4, ("none of the", "data.max_length")),
    ({"task.chat_template": ""}, None, ("chat_template: the tokenizer has no chat template", "family use llama3")),
    ({"task.chat_template": "chatlm"}, None, ("task.chat_template", "unknown chat template 'chatlm'", "mean chatml?")),
    ({"task.chat_template": "./no.jinja"}, None, ("task.chat_template", "no.jinja cannot be read")),
    ({"task.chat_template": "./broken.jinja"}, None, ("task.chat_template", "broken.jinja, line 2")),
    ({"task.chat_template": "./strips.jinja"}, conversations(1), ("line 1", "assistant turn 1", "such as chatml")),
    ({"task.chat_template": "mistral"}, [{"messages": [turn("user", "a")] * 2 + [turn("assistant", "b")]}],
     ("line 1", "must take turns")),
]  # fmt: skip


def test_bad_input_is_refused_in_one_line_before_there_is_a_run(tmp_path, tiny_folder, capsys, subtests):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "latin.jsonl").write_bytes('{"messages": "é"}\n'.encode("latin-1"))
    (tmp_path / "broken.jinja").write_text("\n{% for %}")
    (tmp_path / "strips.jinja").write_text(STRIPS)
    for changes, rows, words in BAD_INPUT:
        with subtests.test(words[-1]):
            data = write_rows(tmp_path / "conversations.jsonl", conversations() if rows is None else rows)
            own = {"data.path": data, "model.model_name_or_path": tiny_folder, "task.chat_template": "chatml"}
            sets = set_options(SETTINGS, {"data.eval_fraction": 0}, own, changes)
            assert main(["train", "--no-ui", *sets]) == 2
            message = capsys.readouterr().err
            assert message.count("\n") == 1 and message.startswith("tui-trainer: "), message
            assert all(word in message for word in words), message
            assert not list(tmp_path.glob("runs/*"))


def test_bad_rows_can_be_skipped(loaded, tmp_path):
    bad = [{"messages": LATER}, {"messages": [turn("assistant", "a"), turn("user", "b")]}]
    config = loaded({"data.on_bad_rows": "skip"}, [*conversations(8), *bad], scratch=True).config
    data, _ = prepared(config, tmp_path)
    assert data.counts.bad_rows == 2
    assert any("begins with an assistant turn" in note for note in data.notes)
