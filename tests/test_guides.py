"""README and guides: their commands and settings exist, their links have targets, their figures have a command.

Each checker takes a text, so that a test can give it a text that breaks its rule.
"""

from __future__ import annotations

import pkgutil
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest
import typer
from markdown_it import MarkdownIt
from typer.core import TyperCommand

from tests.benchmarks import profiles_table
from tui_trainer import cli
from tui_trainer.advice.checklist import all_checks
from tui_trainer.cli import main
from tui_trainer.cli.application import app
from tui_trainer.cli.explain import explanation
from tui_trainer.config.load import Request, all_settings, all_tables, load
from tui_trainer.config.removed import REMOVED
from tui_trainer.config.toml_files import all_profiles
from tui_trainer.errors import InputError
from tui_trainer.lines.guides import FOLDER
from tui_trainer.ui.keymap import ACTIONS, key_sign

for module in pkgutil.iter_modules(cli.__path__):
    import_module(f"{cli.__name__}.{module.name}")  # adds its commands to `app`
OURS = typer.main.get_command(app)
ROOT = Path(__file__).resolve().parent.parent
README, CONTRIBUTING = ROOT / "README.md", ROOT / "CONTRIBUTING.md"
GUIDES = sorted(FOLDER.glob("*.md"))
CHANGELOG = ROOT / "CHANGELOG.md"
PAGES = [README, CONTRIBUTING, CHANGELOG, ROOT / "profiles/README.md", ROOT / "tests/gpu/README.md", *GUIDES]
LONGEST_README_LINES = 180
MARKS = {"not", "and", "or", "gpu", "full", "slow", "e2e", "versions"}
# A name or a number that the reader has.
PLACEHOLDER = re.compile(r"[A-Z_.]+")
OUR_FILE = re.compile(r"(tests|tui_trainer|profiles|screenshots)/[\w./-]+")
MARKDOWN = MarkdownIt("commonmark").enable("table")
# What is counted or weighed: not a width, a version, or the size of a card.
FIGURE = re.compile(r"\d\.\d{3,}|\d[\d,.]* (ms|s|min|[KMG]iB|MB|%|bytes(/s)?|rows/s|tokens/s|times)(?!\w)")


def swept(check) -> list[str]:
    return [f"{path.relative_to(ROOT)}: {wrong}" for path in PAGES for wrong in check(path.read_text("utf-8"), path)]


def code_of(text: str) -> Iterator[str]:
    """Yield the code in sentences, and the lines of fenced blocks (of blocks with prompts, what is behind a prompt)."""
    for token in MARKDOWN.parse(text):
        if token.type == "fence" and not token.info:
            lines = token.content.splitlines()
            yield from [line[2:] for line in lines if line.startswith("$ ")] or lines
        yield from (part.content for part in token.children or () if part.type == "code_inline")


def commands_of(text: str) -> Iterator[list[str]]:
    """Yield each command that runs tui-trainer, python or pytest, without `uv run` and the like."""
    for line in code_of(text):
        if not re.search(r"\b(tui-trainer|python3?|pytest)\b", line):
            continue
        # Brackets are around what may be left out.
        lexer = shlex.shlex(re.sub(r"[\[\]]", "", line), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if not set(word) <= set(";|&>"):
                command.append(word)
                continue
            if command[:2] == ["uv", "run"]:
                command = command[2:]
                while command and command[0].startswith("--"):
                    command = command[2:]
            if command and (name := Path(command[0]).name) in ("tui-trainer", "python", "python3", "pytest"):
                yield [name.rstrip("3"), *command[1:]]
            command = []


def wrong_commands(text: str, _path: Path = README) -> list[str]:
    found = []
    for program, *words in commands_of(text):
        try:
            wrong = wrong_in_ours(words) if program == "tui-trainer" else wrong_in_tests(program, words)
        except InputError as error:
            wrong = str(error)
        found += [f"{program} {' '.join(words)}: {wrong}"] if wrong else []
    return found


def wrong_in_tests(program: str, words: list[str]) -> str:
    """Return the marks, files and modules that do not exist, as a sentence."""
    files = [word for word in words if word.startswith(("tests/", "screenshots/"))]
    if program == "pytest":
        unknown = set(words[words.index("-m") + 1].split()) - MARKS if "-m" in words else set()
        if unknown:
            return f"no marks {unknown}"
    elif words[:1] == ["-m"] and words[1].startswith("tests."):
        files.append(words[1].replace(".", "/") + ".py")
    return ", ".join(f"no file {name}" for name in files if not (ROOT / name).exists())


def wrong_in_ours(words: list[str]) -> str:
    """Return the command, option, recipe or setting that does not exist. Raises InputError for some of them."""
    try:
        given = given_to_command(words)
    except typer.TyperException as error:
        return error.format_message()
    config, profile = given.get("config"), given.get("profile")
    if config and config.suffix != ".toml" and not PLACEHOLDER.fullmatch(str(config)):
        return f"no command {config}"
    if profile and profile not in all_profiles("recipes") and not PLACEHOLDER.fullmatch(profile):
        return f"no recipe {profile}"
    if words := given.get("words"):
        explanation(
            "" if PLACEHOLDER.fullmatch(words[0]) else " ".join(words), lambda: load(Request(), lambda name: (None, ""))
        )
    take([one for one in given.get("assignments") or () if not PLACEHOLDER.fullmatch(one.partition("=")[2])])
    return ""


def given_to_command(words: list[str]) -> dict[str, Any]:
    """Parse a command without running it. A GPU may be one that this machine does not have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TyperCommand, "invoke", lambda self, context: context.params)
        patch.setattr("tui_trainer.hardware.diagnosis.choose_gpu", lambda *chosen: None)
        given = OURS.main(args=words, prog_name="tui-trainer", standalone_mode=False)
    return given if isinstance(given, dict) else {}


def take(assignments: list[str]) -> None:
    """Raise ConfigError for settings that do not exist or do not take their value."""
    load(Request(assignments=tuple(assignments)), lambda name: (None, ""))


def wrong_settings(text: str, path: Path = README) -> list[str]:
    """Return the wrong settings in sentences (`tuning.r = 8`), in config files and in files of keys.

    The changelog may name removed settings.
    """
    first_words = {table.split(".")[0] for table in all_tables()}
    written = [re.fullmatch(r"((\w+)(?:\.\w+)+)(?: = (.+))?", code) for code in code_of(text)]
    named = [(one[1], one[3]) for one in written if one and one[2] in first_words]
    wrong, actions = [], {action.id for action in ACTIONS}
    for token in MARKDOWN.parse(text):
        for name, value in tomllib.loads(token.content).items() if token.info == "toml" else ():
            if isinstance(value, dict):
                named += [(f"{name}.{key}", repr(part)) for key, part in value.items()]
            elif name not in actions:
                wrong.append(f"no action {name}")
    for key, value in named:
        if path == CHANGELOG and key in REMOVED:
            continue
        if key not in all_settings():
            wrong.append(f"no setting {key}")
            continue
        try:
            take([f"{key}={value}"] if value else [])
        except InputError as error:
            wrong.append(str(error))
    return wrong


def wrong_links(text: str, path: Path = README) -> list[str]:
    """Return the links and the names of files without a target."""
    wrong = []
    for part in (part for token in MARKDOWN.parse(text) for part in token.children or ()):
        link = str(part.attrs.get("href") or part.attrs.get("src") or "")
        if part.type == "code_inline" and re.fullmatch(
            r"(tests|tui_trainer|profiles|screenshots)/[\w./-]+", part.content
        ):
            wrong += [] if (ROOT / part.content).exists() else [f"no {part.content}"]
        if not link or "://" in link:
            continue
        name, _, heading = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists():
            wrong.append(f"no {link}")
        elif heading and heading not in map(anchor, re.findall(r"^#+ (.+)", target.read_text("utf-8"), re.M)):
            wrong.append(f"no heading for {link}")
    return wrong


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def lost_figures(text: str, path: Path = README) -> list[str]:
    """Return the figures without the command that prints them.

    In a table with a column of commands, each row has one. For other tables and for output, the command may be in the
    paragraph before.
    """
    lost, before = [], ""
    for block in blocks_of(text):
        rows = block.splitlines()
        if block.startswith("|") and "command" in rows[0]:
            lost += [row for row in rows[2:] if not gives_figures(row)]
        elif FIGURE.search(block):
            from_above = block.startswith(("|", "```")) and gives_figures(before)
            lost += [] if from_above or gives_figures(block) else [block]
        before = block
    # Plans, which one command makes, as the page says at its top.
    return [] if path.parent.name == "profiles" else [f"no command for {one[:100]!r}" for one in lost]


def gives_figures(block: str) -> bool:
    return any(len(command) > 1 for command in commands_of(block)) or "`tests/" in block


def blocks_of(text: str) -> Iterator[str]:
    """Yield each heading, paragraph, list item, table and fenced block."""
    lines = text.splitlines()
    cuts = {0, len(lines)}
    for token in MARKDOWN.parse(text):
        if token.map and token.type in ("heading_open", "paragraph_open", "list_item_open", "table_open", "fence"):
            cuts |= set(token.map)
    ordered = sorted(cuts)
    parts = ("\n".join(lines[start:end]).strip() for start, end in pairwise(ordered))
    yield from filter(None, parts)


def test_every_command_exists():
    assert swept(wrong_commands) == []
    assert sum(1 for path in PAGES for _ in commands_of(path.read_text("utf-8"))) > 120


WRONG_COMMANDS = [
    "tui-trainer pln --model m", "tui-trainer plan --mdel m", "tui-trainer begin", "tui-trainer bench trai --stes 1",
    "uv run tui-trainer --profile quick-start", "tui-trainer --set training.speed=1", "tui-trainer --set tuning.r=much",
    "tui-trainer explain training.speed", "tui-trainer resume --last", "tui-trainer compare",
    "tui-trainer join RUN --rank 1",
    'echo "a" | .venv/bin/tui-trainer chat last --agains base', "uv run --extra x pytest tests/test_nothing.py",
    "pytest -m 'e2e or fast'", "python -m tests.benchmarks.nothing", "uv run python tests/benchmarks/no.py > out.md",
]  # fmt: skip
WRONG_SETTINGS = [
    "`training.speed`", '`tuning.method = "magic"`', '```toml\n[tuning]\nmethod = "magic"\n```',
    "```toml\n[tuning]\nq = 1\n```", '```toml\n"train.nothing" = "X"\n```',
]  # fmt: skip
WRONG_LINKS = [
    "[a](nothing.md)",
    "![a](screenshots/no.svg)",
    "[a](#begin)\n# Start",
    "[a](README.md#no-such)",
    "`tests/no.py`",
]
LOST_FIGURES = [
    "It takes 4.1 times as long.", "- it takes 30 ms (`tests/a.py`)\n- it takes 31 ms",
    "Loss 1.543.\n\n`tui-trainer plan`",
    "| claim | command | figure |\n|---|---|---|\n| a | `tests/a.py` | 1 |\n| b | the same | 2 |",
    "So it is:\n\n```\npeak 1.5 GiB\n```", "| a |\n|---|\n| 12 % |",
]  # fmt: skip
FIGURES_WITH_COMMANDS = [
    "`tui-trainer plan` says 12 %.", "As `tui-trainer plan` says:\n\n```\n12 %\n```",
    "```\n$ tui-trainer plan\n12 %\n```",
    "It takes 12 % (`uv run python tests/a.py`).", "A card of 24 GB, a terminal of 80x24, version 2026.10.9.",
]  # fmt: skip


def test_checkers_find_what_they_look_for(subtests):
    for line in WRONG_COMMANDS:
        with subtests.test(line):
            assert len(wrong_commands(f"```\npip install x && {line}   # it's a comment\n```")) == 1
            assert len(wrong_commands(f"```\n$ {line}\ntui-trainer nonsense --in the output\n```")) == 1
            assert len(wrong_commands(f"In a sentence: `{line}`.")) == 1
    for check, texts in ((wrong_settings, WRONG_SETTINGS), (wrong_links, WRONG_LINKS), (lost_figures, LOST_FIGURES)):
        for text in texts:
            with subtests.test(text):
                assert len(check(text)) == 1
    for text in FIGURES_WITH_COMMANDS:
        with subtests.test(text):
            assert lost_figures(text) == []


def test_every_setting_exists_and_takes_its_value():
    assert swept(wrong_settings) == []


def test_every_link_has_a_target_and_every_guide_is_linked():
    assert swept(wrong_links) == []
    readme = README.read_text("utf-8")
    assert len(GUIDES) > 10
    assert [path.stem for path in GUIDES if f"]({path.relative_to(ROOT).as_posix()})" not in readme] == []


def test_anchor_is_that_of_github():
    text = "# The machine's `memory`, and more\n[a](#the-machines-memory-and-more)"
    page = "tui_trainer/guides/memory.md#weights-in-host-memory"
    assert wrong_links(f"[a]({page})") == [] and anchor(text.splitlines()[0][2:]) in text


def test_every_figure_has_its_command():
    assert swept(lost_figures) == []
    assert sum(1 for path in PAGES for block in blocks_of(path.read_text("utf-8")) if FIGURE.search(block)) > 25


def test_readme_is_short_and_counts_the_checks():
    text = README.read_text("utf-8")
    assert len(text.splitlines()) <= LONGEST_README_LINES
    assert f"about {round(len(all_checks()), -1)} checks" in text


def test_guide_of_keyboards_lists_every_action_with_its_keys():
    """Moves through a list (up, down, first ...) are named once for all screens."""
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", (FOLDER / "keyboards.md").read_text("utf-8"), re.M)
    listed = {
        f"{place}.{name}": keys
        for place, cell in rows
        for name, keys in re.findall(r"`(\w+)` (.+?)(?:, (?=`)|$)", cell)
    }
    moves = {"up", "down", "page_up", "page_down", "first", "last"}
    assert listed == {
        action.id: " ".join(key_sign(key, ascii_only=True) for key in action.keys)
        for action in ACTIONS
        if action.name not in moves
    }


def test_guides_are_listed_with_their_titles(capsys):
    assert main(["guide"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(GUIDES) + 2
    for path, line in zip(GUIDES, listed, strict=False):
        first = path.read_text("utf-8").splitlines()[0]
        assert first.startswith("# ") and line.split(maxsplit=1) == [path.stem, first[2:]] and len(line) <= 90


def test_guides_are_printed_unchanged_in_a_pipe(capsys, subtests):
    for path in GUIDES:
        with subtests.test(path.stem):
            assert main(["guide", path.stem]) == 0
            assert capsys.readouterr().out == path.read_text("utf-8")


def test_guide_is_rendered_within_the_width_of_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "70")
    assert main(["guide", "several-gpus.md"]) == 0
    shown = capsys.readouterr().out
    assert "several processes" in shown and "**" not in shown and "```" not in shown
    assert max(map(len, re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines())) <= 70


def test_unknown_guide_is_refused_with_a_similar_name(capsys):
    assert main(["guide", "gpus"]) == 2
    assert "did you mean several-gpus?" in capsys.readouterr().err


@pytest.mark.dry_run
def test_page_of_profiles_is_what_its_command_prints(monkeypatch):
    """Only its beginning and one of its plans are compared, because all plans take minutes."""
    monkeypatch.setattr(profiles_table.planning, "disk_free_bytes", lambda path: None)
    lines = (ROOT / "profiles/README.md").read_text(encoding="utf-8").splitlines()
    head = list(takewhile(lambda line: not line.startswith("### "), profiles_table.document()))
    assert lines[: len(head)] == head and len(head) > 40
    machine = dict(profiles_table.machines())["H100 SXM"]
    assert profiles_table._plan_row("H100 SXM", machine, "llama-8b-lora", None) in lines
