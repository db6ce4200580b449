"""Malformed configs, data and arguments: one line each, exit code 2, and nothing left behind.

`main` runs in this process and training is barred, so a mistake that slips through ends with exit code 1.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tui_trainer.cli import main
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.lock import RunLock
from tui_trainer.runs.registry import add_to_index, known_runs
from tui_trainer.terminal.safe_text import show_control_characters

GOOD = """
[task]
type = "char_lm"
[data]
path = "data.txt"
max_length = 16
[model.scratch]
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
[training]
max_steps = 3
"""
TEXT = b"The quick brown fox jumps over the lazy dog.\n" * 40
ROW = b'{"text": "The quick brown fox jumps over the lazy dog."}\n'
TRAIN = ("train", "--no-ui", "my.toml")


@dataclass(frozen=True)
class Case:
    """One mistake, and the `words` of the one line that reports it.

    `toml` is the config file, `sets` are given with --set, `files` are written first, `arguments` are the command line.
    """

    name: str
    words: tuple[str, ...]
    toml: str | bytes = GOOD
    sets: tuple[str, ...] = ()
    files: dict[str, bytes] = field(default_factory=dict)
    arguments: tuple[str, ...] = TRAIN

    def command(self) -> list[str]:
        return [*self.arguments, *(part for assignment in self.sets for part in ("--set", assignment))]


def bounds(name: str, assignment: str, *words: str) -> Case:
    key, _, value = assignment.partition("=")
    return Case(name, (f"--set: {key}: {value} is not valid", *words), sets=(assignment,))


def rows(name: str, content: bytes, *words: str, file: str = "rows.jsonl", sets: tuple[str, ...] = ()) -> Case:
    return Case(name, (file, *words), sets=(f"data.path={file}", *sets), files={file: content})


def weights(name: str, value: str, *words: str) -> Case:
    toml = GOOD.replace("char_lm", "causal_lm").replace("[model.scratch]", '[model]\ninit = "scratch"\n[model.scratch]')
    return Case(name, ("--set: data.weights", *words), toml=toml, sets=(f"data.weights={value}",))


def run_name(name: str, value: str) -> Case:
    toml = f"{GOOD}[output]\nname = {json.dumps(value)}\n"
    return Case(name, ("output.name", "cannot be the name of a run", "letters, digits"), toml=toml)


CONFIG_CASES = [
    Case("unknown key", ("my.toml: training.batch_size", "unknown setting"), toml=GOOD + "batch_size = 4\n"),
    Case("misspelt key", ("training.max_step", "did you mean training.max_steps?"), sets=("training.max_step=4",)),
    Case("misspelt table", ("my.toml: trainig", "unknown table", "did you mean [training]?"),
        toml=GOOD + "[trainig]\nseed = 1\n"),
    Case("wrong type", ("--set: training.max_steps", "'many'", "a whole number"), sets=("training.max_steps=many",)),
    Case("number as text", ("my.toml: training.learning_rate", "'1e-4'"), toml=GOOD + 'learning_rate = "1e-4"\n'),
    Case("truth for a number", ("training.seed", "true is not valid", "a whole number"), sets=("training.seed=true",)),
    Case("list for a number", ("training.seed", "[1]", "a whole number"), sets=("training.seed=[1]",)),
    Case("no such choice", ("training.lr_scheduler_type", "'cosin'", '"cosine"'),
        sets=("training.lr_scheduler_type=cosin",)),
    Case("frozen layers of random weights", ("tuning.trainable_layers",
        "is last 1, but random weights cannot be frozen", "leave it empty"), sets=("tuning.trainable_layers=last 1",)),
    Case("LoRA+ without an adapter", ("tuning.loraplus_lr_ratio", "is 16, but tuning.method = full has no adapter",
        "set it to 1"), sets=("tuning.loraplus_lr_ratio=16",)),
    Case("an unknown beginning of adapters", ("tuning.init_lora_weights", "eva", "pissa_niter_16"),
        sets=("tuning.init_lora_weights=eva",)),
    Case("PiSSA without an adapter", ("tuning.init_lora_weights", "is pissa, but tuning.method = full has no adapter",
        "set it to default"), sets=("tuning.init_lora_weights=pissa",)),
    Case("floor of another schedule", ("training.min_lr_rate", "0.1, but the linear schedule has no minimum rate",
        "cosine or warmup_stable_decay"), sets=("training.min_lr_rate=0.1", "training.lr_scheduler_type=linear")),
    Case("decay steps of another schedule", ("training.num_decay_steps", "5, but the cosine schedule does not use it",
        "warmup_stable_decay"), sets=("training.num_decay_steps=5",)),
    bounds("no share of the peak", "training.min_lr_rate=1", "below 1"),
    bounds("NaN epochs", "training.num_train_epochs=nan", "a number"),
    bounds("infinite learning rate", "training.learning_rate=inf", "at most 10"),
    bounds("zero batch", "training.effective_batch_size=0", "at least 1"),
    bounds("negative accumulation", "training.gradient_accumulation_steps=-2", "at least 1"),
    bounds("negative weight decay", "training.weight_decay=-1", "at least 0"),
    bounds("too much held out", "data.eval_fraction=1.5", "at most 0.9"),
    bounds("negative save_steps", "checkpoint.save_steps=-1", "at least 0"),
    bounds("integer of 64 bits and more", f"data.seed={2**64}", "at most"),
    Case("no TOML", ("my.toml", "not valid TOML", "line 2"), toml="[data]\npath = \n"),
    Case("key twice", ("my.toml", "not valid TOML", "line 3"), toml="[data]\nseed = 1\nseed = 2\n"),
    Case("empty value after =", ("training.seed", "''", "a whole number"), sets=("training.seed=",)),
    Case("too large", ("my.toml", "larger than 256 KiB"), toml="# x\n" * 100_000),
    Case("a line too long", ("my.toml", "line 1", "4096 characters"), toml="a" + ".a" * 3000 + " = 1\n"),
    Case("deep nesting", ("my.toml", "nested too deeply"), toml="x = " + "[" * 2000 + "]" * 2000 + "\n"),
    Case("4,000 digits", ("my.toml: schema_version: 111", "it must be 1"), toml=f"schema_version = {'1' * 4000}\n"),
    Case("5,000 digits", ("my.toml", "line 1", "4096 characters"), toml=f"schema_version = {'1' * 5000}\n"),
    Case("5,000 digits with --set", ("data.seed", "'111", "a whole number"), sets=(f"data.seed={'1' * 5000}",)),
    Case("config in UTF-16", ("my.toml", "line 1 is not UTF-8", "save"), toml=GOOD.encode("utf-16")),
    Case("config in Latin-1", ("my.toml", "line 2 is not UTF-8", "save"), toml=b'[data]\npath = "\xe9.txt"\n'),
    Case("config is missing", ("no.toml", "does not exist", "TOML"), arguments=("train", "--no-ui", "no.toml")),
    Case("config is a folder", ("folder", "is data, not a config file", "--data folder"), arguments=("train", "--no-ui",
        "folder")),
    Case("config is a FIFO", ("pipe", "is not a file"), arguments=("train", "--no-ui", "pipe")),
    Case("config cannot be read", ("/proc/self/mem", "cannot be read"), arguments=("train", "--no-ui",
        "/proc/self/mem")),
    Case("other version", ("my.toml: schema_version", "2 is not valid", "it must be 1"),
        toml="schema_version = 2\n" + GOOD),
    Case("section that is no table", ("my.toml: data", "must be a table", "write [data]"), toml="data = 3\n"),
    Case("table for a setting", ("my.toml: training.seed", "a whole number"), toml=GOOD + "[training.seed]\na = 1\n"),
    Case("set without =", ("'training.seed' is not of the form KEY=VALUE", "training.seed=VALUE"),
         sets=("training.seed",)),
    Case("set without key", ("--set", "unknown setting"), sets=("=4",)),
    Case("set with a table behind the value", ("training.learning_rate: \"1e-3\\n[output]", "is not valid"),
        sets=("training.learning_rate=1e-3\n[output]\nname = 'x'",)),
    Case("set with a setting behind the value", ("data.seed: '1\\nseed = 2' is not valid",),
        sets=("data.seed=1\nseed = 2",)),
    Case("set with a comment behind the value", ("data.seed: '1 # two' is not valid",), sets=("data.seed=1 # two",)),
    Case("set that closes the list around it", ("data.seed: '1]\\nx = [2' is not valid",),
        sets=("data.seed=1]\nx = [2",)),
    Case("set of two values", ("data.seed: '1, 2' is not valid",), sets=("data.seed=1, 2",)),
    Case("set of a name with a table behind it", ("output.name", "cannot be the name of a run"),
        sets=("output.name=a\n[data]\nseed = 1",)),
    *(
        Case(f"an address for a folder: {word}", ("output.runs_dir", "is not valid", "a folder"),
            sets=(f"output.runs_dir={word}",))
        for word in ("https://example.org/runs", "s3://bucket/runs")
    ),
    Case("unknown profile", ("--set: profile: no recipe is named 'quikstart'", "did you mean quickstart?"),
        sets=("profile=quikstart",)),
    Case("profile that is missing", ("no/such.toml", "does not exist"), sets=("profile=no/such.toml",)),
    Case("unknown hardware profile", ("--set: hardware_profile: no hardware profile is named 'cpuu'", "cpu"),
        sets=("hardware_profile=cpuu",)),
    weights("weights for other sources", "1,2", "has 2 numbers, but data.path has 1 source"),
    weights("weight of zero", "0", "'0' must be above 0"),
    weights("negative weight", "-0.5", "'-0.5' must be above 0"),
    weights("weight that is none", "often", "'often' is not a number"),
    weights("weight that fills the disk", "1e9", "at most 1,000"),
    weights("truth for weights", "[true]", "[True] is not valid"),
    Case("unknown task", ("--set: task.type", "'char_lmm'", "did you mean char_lm?"), sets=("task.type=char_lmm",)),
    Case("task by half its name", ("task.type", "sequence_classification or token_classification"),
        sets=("task.type=classification",)),
    Case("task that leaves its room", ("task.type", "no task", "available: "), sets=("task.type=../cli",)),
    Case("heads that do not divide", ("num_attention_heads", "hidden_size 16", "valid values: 1, 2, 4, 8"),
        sets=("model.scratch.num_attention_heads=3",)),
    Case("shared heads that do not divide", ("num_key_value_heads", "num_attention_heads 4", "valid values: 1, 2, 4"),
        sets=("model.scratch.num_attention_heads=4", "model.scratch.num_key_value_heads=3")),
    Case("batches that disagree", ("training.effective_batch_size", "4 x 3 = 12", "remove one of these settings"),
        sets=("training.effective_batch_size=32", "training.per_device_train_batch_size=4",
        "training.gradient_accumulation_steps=3")),
    Case("early stopping on nothing", ("evaluation.early_stopping_patience", "data.eval_fraction"),
        sets=("evaluation.early_stopping_patience=2", "data.eval_fraction=0")),
    Case("too little memory", ("per_device_train_batch_size", "TiB of memory; this machine has",
        "per_device_train_batch_size = 4 ("), sets=("training.effective_batch_size=10000000",
        "training.per_device_train_batch_size=10000000", "data.max_length=1048576")),
]  # fmt: skip

DATA_CASES = [
    Case("no data", ("no data is set", "set data.path"), toml='[task]\ntype = "char_lm"\n'),
    Case("data is missing", ("/nowhere.txt'", "check the path"), sets=("data.path=nowhere.txt",)),
    Case("one of several is missing", ("/nowhere.txt'", "check the path"), sets=("data.path=data.txt, nowhere.txt",)),
    Case("glob without files", ("/*.csv'", "nothing was found", "supported:"), sets=("data.path=*.csv",)),
    Case("data at an address", ("'https://a.example/a.jsonl' is an address", "data is not read from https://"),
        sets=("data.path=https://a.example/a.jsonl",)),
    Case("data that is the whole disk", ("'/' is a system folder",), sets=("data.path=/",)),
    Case("data is a FIFO", ("pipe", "not a regular file", "data.path"), sets=("data.path=pipe",)),
    Case("data cannot be read", ("mem", "cannot be read"), sets=("data.path=/proc/self/mem",)),
    Case("folder without files", ("/folder'", "nothing was found", "supported:"), sets=("data.path=folder",)),
    Case("unknown sample", ("'python-referenc'", "did you mean sample:python-reference?"),
        sets=("data.path=sample:python-referenc",)),
    rows("spreadsheet", b"PK\x03\x04", ".xlsx files are not supported", "supported:", file="a.xlsx"),
    rows("table of numbers", b"a,b\n1,2\n", "no column holds text", "columns found: a, b", file="a.csv"),
    rows("empty file", b"", "contains no text", "choose another data.path", file="empty.txt"),
    rows("only blank lines", b"\n \n\t\n", "contains no text", "choose another data.path", file="blank.txt"),
    rows("no rows", b"", "contains no text", "0 documents"),
    rows("broken JSON line", ROW * 9 + b'{"text": oops}\n' + ROW * 9, "line 10", "column 10",
        "expected one JSON object"),
    rows("torn last line", ROW * 9 + ROW[: 20], "line 10", "broken JSON", "expected one JSON object per line"),
    rows("broken line after blank ones", b"\n\n" + ROW + b"\nx\n", "line 5", "column 1", "expected one JSON object"),
    rows("row that is no object", ROW + b"[1, 2]\n", "line 2", "a list, not an object", "expected one JSON object"),
    rows("null text", ROW + b'{"text": null}\n', "line 2", "'text' is null, not a string"),
    rows("number for a text", ROW + b'{"text": 7}\n', "line 2", "'text' is a number, not a string"),
    rows("lone surrogate", ROW + rb'{"text": "ab\ud800"}' + b"\n", "line 2", "surrogate", "character 3"),
    rows("nested JSON", ROW + b'{"text": ' + b"[" * 90_000 + b"\n", "line 2", "nested too deeply"),
    rows("number of 5,000 digits", ROW + b'{"n": ' + b"1" * 5000 + b"}\n", "line 2", "cannot be read"),
    rows("no text column", b'{"prompt": "a", "answer": "b"}\n', "there is no column 'text'",
        "columns found: prompt, answer", "data.text_column", sets=("data.text_column=text",)),
    rows("two columns of text", b'{"title": "a b", "note": "b c"}\n', "several columns could be the text",
        "set data.text_column to one of title, note"),
    rows("hostile column name", b'{"\\u001b]0;x\\u0007": "a"}\n', "there is no column 'text'", "columns found: ",
        "data.text_column", sets=("data.text_column=text",)),
    rows("Latin-1 text", TEXT + b"caf\xe9\n", "line 41", "byte offset 1,803", "Windows-1252 or Latin-1", "iconv",
        file="latin.txt"),
    rows("Latin-1 row", ROW * 2 + b'{"text": "\xe9"}\n', "line 3", "0xe9", "byte offset 124", "Latin-1", "iconv"),
    rows("UTF-16", TEXT.decode().encode("utf-16"), "line 1", "probably UTF-16", "iconv", file="wide.txt"),
    rows("binary file", b"GIF89a\n\0\0", "line 2", "byte offset 7", "must be a text file", file="a.txt"),
    rows("gzip that is none", TEXT, "not a valid gzip file", "rename the file", file="a.txt.gz"),
    rows("gzip cut short", gzip.compress(TEXT * 9)[: - 30], "truncated", "download", file="a.txt.gz"),
    rows("text shorter than one block", b"short", "fewer than one row of 17", "add more text", file="a.txt"),
]  # fmt: skip

FOLDER_CASES = [
    *(
        run_name(f"run name {name}", value)
        for name, value in {
            "above": "..",
            "far above": "../../away",
            "through": "x/../../y",
            "absolute": "/tmp/away",
            "with NUL": "a\0b",
            "with a line break": "a\nb",
            "with an escape": "\x1b[31mred",
            "hidden": ".run",
            "option": "-rf",
            "too long": "x" * 300,
            "with a space": "my run",
        }.items()
    ),
    Case("run exists", ("runs/taken", "this run already exists", "tui-trainer resume taken"),
        sets=("output.name=taken",)),
    Case("run is in use", ("runs/taken", "in use", "process"), arguments=("resume", "taken")),
    Case("runs below a file", ("data.txt", "cannot be used", "output.runs_dir"), sets=("output.runs_dir=data.txt/runs",
        )),
    Case("runs in /proc", ("output.runs_dir", "0 B are free", "choose another disk"),
        sets=("output.runs_dir=/proc/runs",)),
    Case("runs in a name with NUL", ("cannot be used", "output.runs_dir"),
        toml=GOOD + '[output]\nruns_dir = "a\\u0000b"\n'),
    Case("too little disk", ("output.runs_dir", "TiB", "are free", "lower checkpoint.save_total_limit"),
        sets=("training.max_steps=1000000000", "checkpoint.save_steps=1", "checkpoint.save_total_limit=1000000",
        "model.scratch.hidden_size=512")),
]  # fmt: skip

ARGUMENT_CASES = [
    Case("no screen yet", ("--no-ui",), arguments=("train", "my.toml")),
    Case("unknown option", ("--epochs", "tui-trainer train --help"), arguments=("train", "--no-ui", "--epochs", "3")),
    Case("option without its value", ("--set", "tui-trainer --help"), arguments=("train", "--no-ui", "--set")),
    Case("a plain text beside rows, before anything is prepared", ("notes.md: this is plain text",),
         files={"rows/a.jsonl": b'{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n', "rows/notes.md": b"#\n"},
         arguments=("plan", "--profile", "docstring-topics", "--data", "rows")),
    Case("an option given twice", ("--data was given 2 times",), arguments=("plan", "--data", "a", "--data", "b")),
    Case("misspelt command", ("'resum'", "did you mean the command resume?"), arguments=("resum",)),
    Case("two configs", ("other.toml", "only one config can be given"), arguments=("train", "--no-ui", "my.toml",
        "other.toml")),
    Case("resume of an unknown run", ("no run 'nothing'", "taken"), arguments=("resume", "nothing")),
    Case("stop of an unknown run", ("no run 'nothing'", "taken"), arguments=("stop", "nothing")),
    Case("generate of an unknown run", ("no run 'nothing'", "taken"), arguments=("generate", "nothing")),
    Case("generate before training", ("taken", "no model and no checkpoint yet", "resume taken"), arguments=("generate",
        "taken", "hello")),
    Case("RUN that is a folder of another kind", ("not the folder of a run", "tui-trainer runs"), arguments=("resume",
        "./folder")),
    Case("unknown request", ("'jump' is not a valid action", "pause, resume"), arguments=("ask", "taken", "jump")),
    Case("unknown setting", ("'learning_rat'", "did you mean training.learning_rate, the check learning_rate or"),
        arguments=("explain", "learning_rat")),
    Case("unknown preset", ("'quick'", "quickstart"), arguments=("profiles", "quick")),
    *(
        Case(f"an empty text: {words}", (f"{what} is empty", "omit it"), arguments=words)
        for what, *words in (
            ("--data", "plan", "my.toml", "--data", ""), ("--data", "train", "--no-ui", "my.toml", "--data="),
            ("--model", "preview", "my.toml", "--model", ""), ("--profile", "plan", "--profile", ""),
            ("--set", "plan", "my.toml", "--set", ""), ("--out", "report", "taken", "--out", ""),
            ("an argument", "plan", ""), ("an argument", "resume", ""), ("an argument", ""),
        )
    ),
    *(
        Case(f"no text: {words!a}", (f"{what} {why}",), arguments=words)
        for what, why, *words in (
            ("--data", "has a NUL character: a\u2400b", "plan", "my.toml", "--data", "a\0b"),
            ("an argument", "has a NUL character", "plan", "a\0b.toml"),
            ("an argument", "is not UTF-8: caf\\xe9", "resume", "caf\udce9"),
            ("an argument", "is not UTF-8: x\\ud800", "plan", "my.toml", "--set", "x\ud800"),
        )
    ),
    Case("config whose name is too long", ("cannot be read: File name too long",), arguments=("plan", "a" * 5000)),
    Case("number out of bounds", ("--temperature", "equal to 10"), arguments=("generate", "taken", "--temperature",
        "11")),
]  # fmt: skip


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """A folder with good data, a FIFO, an empty folder, and a run that this process uses."""
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.chdir(tmp_path)
    for heavy in ("tui_trainer.training.run", "tui_trainer.exporting.generate"):
        monkeypatch.setitem(sys.modules, heavy, None)
    (tmp_path / "data.txt").write_bytes(TEXT)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    taken = RunFolder.create(tmp_path / "runs", "taken")
    assert add_to_index(taken.root) is None
    with RunLock(taken.lock):
        yield tmp_path


def contents(place: Path) -> dict[str, bytes | None]:
    """Return the files and folders below `place` with their contents, without the state folder."""
    found = {}
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place).as_posix()
        if name != "home" and not name.startswith("home/"):
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def cached(place: Path) -> list[Path]:
    return list((place / "home" / "cache").glob("*"))


def assert_refused(case: Case, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "my.toml").write_bytes(case.toml.encode() if isinstance(case.toml, str) else case.toml)
    for name, content in case.files.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(content)
    before = contents(place)
    capsys.readouterr()
    code = main(case.command())
    message = capsys.readouterr().err
    assert code == 2, message
    assert message.endswith("\n") and message.count("\n") == 1, message
    assert message.startswith("tui-trainer: ")
    for word in case.words:
        assert word in message
    assert show_control_characters(message) == message and "Traceback" not in message
    assert contents(place) == before
    assert [run.name for run in known_runs()] == ["taken"] and cached(place) == []
    for name in case.files:
        (place / name).unlink()


def test_mistakes_in_a_config_are_reported_in_one_line_and_leave_nothing(place, capsys, subtests):
    for case in CONFIG_CASES:
        with subtests.test(case.name):
            assert_refused(case, place, capsys)


def test_mistakes_in_data_are_reported_in_one_line_and_leave_nothing(place, capsys, subtests):
    for case in DATA_CASES:
        with subtests.test(case.name):
            assert_refused(case, place, capsys)


def test_bad_names_of_runs_and_bad_arguments_are_reported_in_one_line_and_leave_nothing(place, capsys, subtests):
    for case in [*FOLDER_CASES, *ARGUMENT_CASES]:
        with subtests.test(case.name):
            assert_refused(case, place, capsys)


def test_all_mistakes_of_a_config_are_reported_together(place, capsys):
    toml = GOOD + "batch_size = 4\nlearning_rate = -1.0\n[trainig]\nseed = 1\n"
    (place / "my.toml").write_text(toml)
    arguments = [*TRAIN, "--profile", "quikstart", "--set", "data.seed=x", "--set", "training.max_steps"]
    assert main(arguments) == 2
    message = capsys.readouterr().err.splitlines()
    words = ["training.batch_size", "training.learning_rate", "trainig", "quikstart", "data.seed", "KEY=VALUE"]
    assert len(message) == len(words)
    assert all(sum(word in line for line in message) == 1 for word in words)


def test_contradictions_and_missing_data_are_reported_together(place, capsys):
    (place / "my.toml").write_text(GOOD)
    settings = {
        "model.scratch.num_attention_heads": 3,
        "training.effective_batch_size": 32,
        "training.per_device_train_batch_size": 4,
        "training.gradient_accumulation_steps": 3,
        "evaluation.early_stopping_patience": 2,
        "data.eval_fraction": 0,
        "data.path": "nowhere.txt",
    }
    assert main([*TRAIN, *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))]) == 2
    message = capsys.readouterr().err.splitlines()
    words = ["num_attention_heads", "4 x 3 = 12", "early_stopping_patience", "nowhere.txt"]
    assert len(message) == len(words)
    assert all(sum(word in line for line in message) == 1 for word in words)


def test_equal_mistakes_share_a_line_and_at_most_five_kinds_are_reported(place, capsys):
    (place / "my.toml").write_text(GOOD)
    words = ("null", "oops", "[1]", "3", '{"text": 1}', '{"text": []}', '{"no": ""}')
    (place / "rows.jsonl").write_bytes(b"".join(ROW + word.encode() + b"\n" for word in words * 1000))
    for command in (TRAIN, ["preview", "my.toml"]):
        assert main([*command, "--set", "data.path=rows.jsonl"]) == 2
        message = capsys.readouterr().err.splitlines()
        assert len(message) == 6
        assert "rows.jsonl, line 4 (1,000 times, also 18, 32, ...): broken JSON" in message[1]
        assert message[-1].endswith("and 2,000 other problems; set data.on_bad_rows=skip to skip unusable rows")


def test_bad_rows_are_reported_with_their_lines_and_a_piece_of_the_first(place, capsys, subtests):
    (place / "my.toml").write_text(GOOD)
    for bad, words in (
        ([1], "rows.jsonl, line 2: "),
        ([1, 4], "rows.jsonl, line 2 (also 5): "),
        (range(1000), "rows.jsonl, line 1 (all 1,000 rows): "),
    ):
        with subtests.test(words):
            rows = [{"id": n, "text": 7 if n in bad else "good", "note": "\x1b[31m"} for n in range(1000)]
            (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            assert main([*TRAIN, "--set", "data.path=rows.jsonl", "--set", "data.text_column=text"]) == 2
            message = capsys.readouterr().err
            assert f"{words}the column 'text' is a number, not a string" in message
            assert f'the row: {{"text": 7, "id": {bad[0]}, "note": "\u241b[31m"}}' in message
            assert cached(place) == []


def test_name_that_no_new_run_can_have_is_refused_by_every_command_that_looks_ahead(place, capsys, subtests):
    (place / "my.toml").write_text(GOOD)
    before = contents(place)
    for name, words in (("../x", "cannot be the name of a run"), ("taken", "this run already exists")):
        for command in (["plan", "--json"], ["check"], ["rehearse"], ["train", "--no-ui"]):
            with subtests.test(f"{command[0]}, {name}"):
                assert main([*command, "my.toml", "--set", f"output.name={name}"]) == 2
                message = capsys.readouterr().err
                assert words in message and message.count("\n") == 1, message
    assert contents(place) == before


def test_setting_that_is_given_twice_is_noted(place, capsys):
    (place / "my.toml").write_text(GOOD)
    (place / "other.txt").write_bytes(TEXT)
    sets = ("data.path=other.txt", "data.seed=1", "data.seed=2", "data.seed=2")
    assert main(["plan", "my.toml", "--data", "data.txt", *(part for text in sets for part in ("--set", text))]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "--data data.txt is ignored, because --set data.path is given" in printed
    assert printed.count("data.seed is given twice with --set: the last value is used, 1 is ignored") == 1


def test_plan_reports_a_missing_column_of_the_data(place, capsys):
    (place / "my.toml").write_text(GOOD.replace('"data.txt"', '"rows.jsonl"\ntext_column = "text"'))
    (place / "rows.jsonl").write_bytes(b'{"prompt": "a"}\n' * 9)
    for arguments in (["plan", "my.toml"], ["plan", "my.toml", "--json"]):
        assert main(arguments) == 2
        printed = capsys.readouterr()
        assert "columns found: prompt" in printed.err and printed.out == ""
