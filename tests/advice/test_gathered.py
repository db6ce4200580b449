"""What the checks look at, as it is gathered: the memory that is free now, and the load of other programs."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiny_models import save_tiny_model
from tests.trained_runs import write_rows
from tui_trainer.advice.gather import gather
from tui_trainer.cli import main
from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.hardware import processor
from tui_trainer.hardware.cgroup import CgroupLimits
from tui_trainer.hardware.probe import probe
from tui_trainer.launching.open_run import load_config
from tui_trainer.tasks import find_task
from tui_trainer.units import GIB, MIB


def config() -> LoadedConfig:
    return load_config(Request())


@pytest.fixture
def limited(monkeypatch):
    """`limited(free_bytes)`: the container has that much memory left."""

    def limit(free_bytes: int) -> None:
        now = CgroupLimits(memory_bytes=4 * GIB, memory_used_bytes=4 * GIB - free_bytes)
        monkeypatch.setattr("tui_trainer.hardware.probe.read_limits", lambda: now)

    return limit


def test_facts_are_gathered_from_this_machine():
    context, now = gather(config()), {"memory_available_bytes": 0, "load_of_others": None}
    assert replace(context.hardware, **now) == replace(probe(), **now)
    assert context.plan is not None
    assert context.all_token_count and context.disk_free_bytes and context.cache.writable is True


def test_the_plan_is_made_for_the_memory_that_is_free_now(limited):
    at_start, sizes = probe(), []
    for free in (500 * MIB, 120 * MIB, 500 * MIB):
        limited(free)
        context = gather(config(), hardware=at_start)
        assert context.hardware.memory_available_bytes == free
        sizes.append(context.required_plan.per_device_train_batch_size.value)
    assert sizes[1] < sizes[0] == sizes[2]


def test_tokens_that_a_tokenizer_leaves_out_and_settings_for_other_data_are_found(tmp_path, subtests):
    texts = write_rows(tmp_path / "rows.jsonl", [{"text": f"hen {n}", "label": f"{n % 2}"} for n in range(20)])
    answers = write_rows(tmp_path / "answers.jsonl", [{"input": f"hen {n}", "output": "hen"} for n in range(20)])
    frames = {"bert": ("[CLS]", "[SEP]"), "roberta": ("<s>", "</s>"), "bart": ("</s>",), "gemma": ("<bos>",)}
    for family, frame in frames.items():
        for own_class, post_processor in ((False, False), (False, True), (True, False)):
            with subtests.test(family, own_class=own_class, post_processor=post_processor):
                folder = save_tiny_model(tmp_path / f"{family}-{own_class}-{post_processor}", family)
                if not post_processor:
                    rewrite(folder / "tokenizer.json", post_processor=None)
                if own_class:
                    rewrite(folder / "tokenizer_config.json", tokenizer_class=None)
                if family == "bart":
                    rewrite(folder / "config.json", min_length=56, length_penalty=1.0)
                    rewrite(folder / "generation_config.json", num_beams=4, min_length=20)
                data = answers if family == "bart" else texts
                shortcuts = {"data.path": str(data), "model.model_name_or_path": str(folder)}
                context = gather(load_config(Request(shortcuts=shortcuts)))
                task = find_task(context.config.task.type)
                assert context.missing_frame == (() if post_processor or own_class else frame)
                shaping = {"bart": {"min_length": 20, "num_beams": 4}, "gemma": {}}
                assert task.shaping_settings(context.config) == shaping.get(family)  # others write nothing


LONG, SHORT = "the hen sang a song " * 60, "the hen sang"
TURNS: list[tuple[str, str]] = [(f"{SHORT} {n}?", SHORT) for n in range(20)]


def conversations(*turns: tuple[str, str]) -> list[dict]:
    return [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in turns]


# Of each: the family of the model, the rows, settings, and parts of what each check finds before anything is prepared.
LEFT_OUT: dict[str, tuple[str, list[dict], dict[str, str], dict[str, tuple[str, ...]]]] = {
    "chat": (
        "llama",
        conversations(*TURNS, (LONG, SHORT), (SHORT, LONG), TURNS[0]),
        {"task.chat_template": "chatml"},
        {
            "left_out": ("1 of 23 rows is skipped: 1 without a token to train on within data.max_length",),
            "truncation": ("2 of 23 rows (8.7%)", "are truncated, losing about", "1 of them lose all tokens"),
            "sequence_length": ("longer rows are truncated",),
        },
    ),
    "rows that are left out": (
        "llama",
        conversations(*TURNS, (SHORT, ""), TURNS[0], TURNS[1]),
        {"task.chat_template": "chatml", "data.on_bad_rows": "skip", "data.dedup": "true"},
        {"left_out": ("3 of 23 rows are skipped: 1 unusable, 2 with the text of an earlier row",)},
    ),
    "an empty answer": (
        "llama", conversations(*TURNS, (SHORT, "")), {"task.chat_template": "chatml"},
        {"plan": ("line 21", "an assistant turn, is empty")},
    ),
    "causal_lm": (
        "llama",
        [*({"text": f"{SHORT} {n}"} for n in range(20)), {"text": LONG}, {"text": " "}],
        {},
        {
            "left_out": ("1 of 22 documents is skipped: 1 with only white space",),
            "truncation": ("1 of 21 documents are split into", "no token is lost"),
            "sequence_length": ("longer documents are split into rows",),
        },
    ),
    "seq2seq": (
        "bart",
        [*({"source": f"{SHORT} {n}", "target": SHORT} for n in range(20)), {"source": SHORT, "target": LONG}],
        {"task.max_target_length": "32"},
        {"truncation": ("1 answer does not fit completely",), "left_out": ("0 of 21 rows",)},
    ),
    "sequence_classification": (
        "bert",
        [*({"text": f"{SHORT} {n}", "label": f"{n % 2}"} for n in range(20)), {"text": LONG, "label": "1"}],
        {},
        {"truncation": ("1 of 21 rows (4.8%)", "are truncated, losing about"), "left_out": ("0 of 21 rows",)},
    ),
    "token_classification": (
        "bert",
        [{"tokens": text.split(), "ner_tags": ["O", "B-X", *["O"] * (len(text.split()) - 2)]} for text in
         (*[SHORT] * 20, LONG)],
        {},
        {"truncation": ("1 of 21 rows (4.8%)", " words"), "left_out": ("0 of 21 rows",)},
    ),
    "question_answering": (
        "bert",
        [{"question": "who?", "context": text, "answers": {"text": ["hen"], "answer_start": [4]}} for text in
         (*[SHORT] * 20, LONG)],
        {},
        {
            "truncation": ("rows are truncated", "they are windows of 21 texts"),
            "sequence_length": ("longer texts are split into windows",),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_OUT)
def test_check_tells_what_is_left_out_before_and_after_the_data_is_prepared(name, tmp_path, capsys):
    family, content, settings, expected = LEFT_OUT[name]
    folder = tmp_path / "data"
    folder.mkdir()
    write_rows(folder / "rows.jsonl", content)
    (folder / "README.md").write_text("about the rows")
    model = save_tiny_model(tmp_path / "model", family)
    command = ["check", "--json", "--data", str(folder), "--model", str(model), "--set", "data.max_length=96"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    told = []
    for _ in range(2):
        capsys.readouterr()
        main(command)
        told.append({one["check"]: one for one in json.loads(capsys.readouterr().out)["findings"]})
        for check, parts in expected.items():
            evidence = told[-1][check]["evidence"]
            assert all(part in evidence for part in parts), evidence
    assert "plan" in expected or "files not read: README.md" in told[0]["left_out"]["evidence"]
    assert told[0]["truncation"]["evidence"] == told[1]["truncation"]["evidence"]


def test_check_counts_the_first_rows_of_large_data_and_says_so(tmp_path, capsys):
    rows = conversations(*TURNS[:19], (LONG, SHORT)) * 3000
    data = write_rows(tmp_path / "rows.jsonl", rows)
    assert data.stat().st_size > 8 * MIB
    model = save_tiny_model(tmp_path / "model", "llama")
    capsys.readouterr()
    assert main(["check", "--json", "--data", str(data), "--model", str(model), "--set", "data.max_length=96",
                 "--set", "task.chat_template=chatml"]) == 0  # fmt: skip
    evidence = {one["check"]: one["evidence"] for one in json.loads(capsys.readouterr().out)["findings"]}
    assert "100 of 2,000 rows are skipped" in evidence["left_out"]
    for check in ("left_out", "truncation", "trained_share"):
        assert evidence[check].endswith("(from the first 2,000 rows or documents only)"), evidence[check]
    assert "once all data is prepared" in evidence["eval_leaks"]


def rewrite(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def write_stat(folder: Path, name: int, *, state: str = "S", cpu_seconds: float = 0, age_seconds: float = 1000) -> None:
    """Write what the kernel writes of a thread. The name of the thread is made to be misread."""
    ticks = processor.os.sysconf("SC_CLK_TCK")
    started = (time.clock_gettime(time.CLOCK_BOOTTIME) - age_seconds) * ticks
    fields = [state, *"0" * 10, int(cpu_seconds * ticks), 0, *"0" * 6, int(started), 0]
    (folder / str(name)).mkdir(parents=True)
    (folder / str(name) / "stat").write_text(f"{name} (a) R (b) " + " ".join(map(str, fields)))


def test_the_own_load_counts_threads_that_run_now_and_that_ran_all_along(tmp_path):
    def own(name: str, *threads: dict) -> float:
        for number, facts in enumerate(threads):
            write_stat(tmp_path / name, -number - 1, **facts)
        return processor.load_of_this_process(tmp_path / name)

    assert own("idle", {}, {}) == 0
    assert own("two run", {"state": "R"}, {"state": "R"}, {}) == pytest.approx(2, abs=0.01)
    assert own("waits for us", {"cpu_seconds": 900}) == pytest.approx(0.9, abs=0.02)
    assert own("a minute old", {"state": "R", "age_seconds": 60}) == pytest.approx(0.632, abs=0.1)
    assert own("new", {"state": "R", "age_seconds": -1}) == 0
    assert processor.load_of_this_process(tmp_path / "no such system") == 0
    write_stat(tmp_path / "asks", threading.get_native_id(), state="R")
    assert processor.load_of_this_process(tmp_path / "asks") == 0, "the thread that asks is no load"


def test_the_own_threads_are_subtracted_from_the_load_of_the_machine(monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (3.5, 0, 0))
    monkeypatch.setattr(processor, "load_of_this_process", lambda: 2.0)
    monkeypatch.setattr(processor, "running_tasks_of_others", lambda: 7)
    assert gather(config()).load_average == 1.5
    monkeypatch.setattr(processor, "running_tasks_of_others", lambda: 1)
    assert gather(config()).load_average == 1, "a run that has just ended is in the mean of the last minute"
    monkeypatch.setattr(processor, "load_of_this_process", lambda: 4.0)
    assert gather(config()).load_average == 0
    monkeypatch.delattr("os.getloadavg")
    assert gather(config()).load_average is None
