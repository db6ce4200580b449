"""A hundred texts that would act on a terminal, in everything that is shown: none acts, on any screen."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
import unicodedata
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomli_w
from textual.events import Paste
from textual.widgets import Input

from tests.combinations import first_by_default
from tests.ui.bare_app import BareApp
from tests.ui.test_hardware_view import PARTS as HARDWARE_PARTS
from tui_trainer.checklist.contract import Check, Finding, Verdict
from tui_trainer.config.document import Document
from tui_trainer.config.load import Request
from tui_trainer.config.profiles import find_profile
from tui_trainer.hardware.diagnosis import diagnose
from tui_trainer.hardware.facts import Driver, Gpu, GpuProcess, Hardware, Place
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.planning.conflicts import setting_problems
from tui_trainer.runs import events as e
from tui_trainer.runs.state import fold
from tui_trainer.ui.chart.drawing import ChartDrawing, ChartView
from tui_trainer.ui.dialogs import ChoiceDialog, TextDialog
from tui_trainer.ui.screens.checklist import finding_lines, finding_row
from tui_trainer.ui.screens.config_dialogs import RecipeChooser, preview_lines, recipe_line
from tui_trainer.ui.screens.config_model import ConfigModel, Editor, name_cells
from tui_trainer.ui.screens.config_view import ConfigPanes
from tui_trainer.ui.screens.hardware import Machine
from tui_trainer.ui.screens.train import PARTS, visible_parts
from tui_trainer.ui.screens.train_lines import TrainScene
from tui_trainer.ui.spans import ASCII, UNICODE, Line, fit, harmless, width_of
from tui_trainer.ui.widgets.lists import row_line

ESC, BEL, ST = "\x1b", "\x07", "\x1b\\"
# What follows ESC [ : cursor, clearing, scrolling, modes, reports, colours, window operations.
_CSI = "2J H 31;1H 5A 5B 5C 5D 6n c >c 0K 3J 10L 10M 5P 2;5r s u ?1049h ?1049l ?25l ?1003h ?2004l ?7l 4h 21t 8;9;9t 31m"
_CSI_TEXTS = [f"a{ESC}[{rest}b" for rest in _CSI.split()]
_STRINGS = [
    "52;c;cm0gLXJm",
    "0;owned",
    "2;owned",
    "8;;http://evil",
    "4;1;red",
    "10;?",
    "11;#fff",
    "104",
    "22;wait",
    "777;x",
]
_OSC_TEXTS = [f"{ESC}]{rest}{end}" for rest, end in zip(_STRINGS, [BEL, ST] * 5, strict=True)]
_OTHER_ESCAPES = [
    f"{ESC}{rest}" for rest in ("c", "7", "8", "D", "M", "#8", "(0", "P1$rm" + ST, "_x" + ST, "^x" + ST, "Xx" + ST, "")
]
_CONTROLS = [
    f"a{sign}b" for sign in "\x00\x01\x05\x07\x08\t\n\x0b\x0c\r\x0e\x0f\x11\x13\x18\x7f\x84\x85\x90\x9b\x9d\x9f"
]
_BIDI = [
    f"a{chr(code)}b"
    for code in (0x061C, 0x200E, 0x200F, 0x202A, 0x202B, 0x202D, 0x202E, 0x2066, 0x2067, 0x2068, 0x2069)
]
_INVISIBLE = [f"a{chr(code)}b" for code in (0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0x2028, 0x2029)]
_MARKUP = ["[bold red]x", "[/]", "[@click=app.quit]q[/]", "[link=http://evil]x", "$error", "{x!r} %s %n"]
_WIDE = ["\u6f22\u5b57" * 30, "e\u0301\u0301\u0301", "\u0301", "\U0001f468\u200d\U0001f469", "\U0001f44d\U0001f3fd" * 9]
_BROKEN = ["\udc9b2J", "\ud800", "\udcff" * 20, "x" * 5000, "x " * 3000, f"{ESC}[" * 500, "\x00" * 300]
TEXTS = [*_CSI_TEXTS, *_OSC_TEXTS, *_OTHER_ESCAPES, *_CONTROLS, *_BIDI, *_INVISIBLE]
TEXTS += [*_MARKUP, *_WIDE, *_BROKEN]
HIDDEN = set("\u061c\u200b\u200c\u200d\u200e\u200f\u2060\ufeff") | {
    chr(n) for n in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
# All that Textual and this program send themselves: colours, places, their own modes, two queries, the pointer's shape.
OWN_SEQUENCES = re.compile(
    r"\x1b\[([\d;]*m|\d+;\d+H|\?(1049|25|1000|1003|1006|1015|1016|1004|2004|7|2026|2048)[hl]|\?20(26|48)\$p|>\d+u|<u)|\x1b\]22;default\x07|\r|\n"
)
HOSTILE = "".join(text for text in TEXTS[::3] if len(text) < 20 and not set(text) & set("\x00/"))[:300]
EVERYTHING_IS_HOSTILE = f"""
import os
from dataclasses import replace
import tui_trainer.hardware.probe as room
from tui_trainer.hardware.facts import Driver
from tui_trainer.runs.journal import JournalWriter

TEXT = {HOSTILE!r}.encode("utf-8", "replace").decode()
probe, append = room.probe, JournalWriter.append
room.probe = lambda: replace(
    probe(), host=TEXT, cpu_name=TEXT, platform=TEXT, driver=Driver(version=TEXT, problem=TEXT), python_version=TEXT
)

def append_and_fail(self, *events):
    append(self, *events)
    if any(type(event).__name__ == "StepDone" and event.step >= 40 for event in events):
        os.write(1, TEXT.encode() + b"\\n")
        raise RuntimeError(TEXT)

JournalWriter.append = append_and_fail
"""
SIZES = ((80, 22), (120, 33), (200, 48))


def assert_harmless(lines: list[Line], width: int, height: int) -> str:
    """Nothing in them acts, nothing hides, every line is as wide as the screen."""
    assert len(lines) == height
    text = "\n".join("".join(part for part, _ in line) for line in lines)
    bad = {sign for sign in text.replace("\n", "") if unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp")}
    assert not bad | (HIDDEN & set(text)), text
    assert text.count("\n") == height - 1
    assert [width_of(line) for line in lines] == [width] * height
    return text


def test_there_are_a_hundred_of_them_and_each_is_another():
    assert len(set(TEXTS)) == len(TEXTS) >= 100


def hardware_of(text: str) -> Hardware:
    process = GpuProcess(pid=1, name=text, user=text, memory_bytes=1 << 30)
    card = Gpu(index=0, name=text, uuid=text, memory_bytes=1 << 37, memory_free_bytes=1, processes=(process,))
    return Hardware(
        cpu_name=text, usable_cores=2, memory_bytes=1 << 34, memory_available_bytes=1 << 33, platform=text,
        python_version=text, host=text, cpu_flags=frozenset({text}), gpus=(card, replace(card, index=1, problem=text)),
        driver=Driver(version=text, cuda=(12, 4), problem=text), libraries={"torch": text, "peft": text},
        places=(Place(label="runs", path=text, free_bytes=1, total_bytes=2, writable=False),),
    )  # fmt: skip


@pytest.mark.parametrize("size", first_by_default(SIZES))
def test_the_hardware_screen_shows_them_and_nothing_happens(size):
    width, wide = size[0], size[0] >= 120
    swept = 0
    for text in TEXTS:
        hardware = hardware_of(text)
        machine = Machine(
            diagnosis=diagnose(hardware, None), hardware=hardware, gauges=Gauges(gpus=(Gpu(index=0, name=text),)),
            profile=(text, "trains on it"), wide=wide, width=width, glyphs=UNICODE,
        )  # fmt: skip
        for part in HARDWARE_PARTS:
            lines = [fit(line, width) for line in part(machine)]
            swept += len(lines)
            if lines:
                assert_harmless(lines, width, len(lines))
    assert swept > 20 * len(TEXTS)


@pytest.fixture
def recipes(tmp_path, monkeypatch) -> int:
    """Recipes of the user's own whose names, titles and values are hostile; how many."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "config" / "tui-trainer" / "profiles" / "recipes"
    folder.mkdir(parents=True)
    for number, text in enumerate(TEXTS):
        plain = text.encode("utf-8", "replace").decode()[:600]
        values = {"about": dict.fromkeys(("title", "summary", "source"), plain), "data": {"path": plain}}
        name = plain.replace("/", "").replace("\x00", "")[:40]
        (folder / f"{number:03}{name}.toml").write_text(tomli_w.dumps(values))
    return len(TEXTS)


@pytest.fixture
def model(recipes) -> ConfigModel:
    hardware = find_profile("cpu", "hardware")
    document = Document(
        Request(), lambda requested: (hardware, "") if requested == "auto" else (None, ""), setting_problems
    )
    return ConfigModel(document, {"data.path": TEXTS})


def test_the_config_screen_shows_them_and_nothing_happens(model):
    bench = SimpleNamespace(glyphs=UNICODE, plan=None, preset_plan=None, is_planning=False)
    panes = ConfigPanes(bench, model)
    drawn_before: set[tuple[int, tuple]] = set()

    def look(editor: Editor | None = None) -> None:
        panes.editor = editor
        for width, _ in SIZES:
            drawn = [*panes.summary(width, 1), *panes.names(width, 1), *panes.details(width, 30), *panes.toml(width, 9)]
            drawn += [row_line(row, width, name_cells(), UNICODE) for row in model.rows]
            # Most settings have nothing of the text: their lines are the same again.
            new = [line for line in drawn if (width, tuple(line)) not in drawn_before]
            drawn_before.update((width, tuple(line)) for line in new)
            if lines := [harmless(fit(line, width), width) for line in new]:
                assert_harmless(lines, width, len(lines))

    panes.key = "data.path"
    for text in TEXTS:
        for key in ("data.text_column", "output.name", "data.path"):
            model.document.set(key, text)
        look()
        editor = model.edit("data.path")
        editor.typed(text)
        look(editor)
        model.take(editor)
        panes.key, model.filter = "", text
        look()
        panes.key, model.filter = "data.path", ""
    chooser = RecipeChooser(model.document)
    assert chooser is not None and len(chooser.recipes) > 100
    rows = [recipe_line(chooser, place, 76, UNICODE) for place in range(len(chooser.recipes))]
    assert all(text.isprintable() for row in rows for text, _ in row)
    pictures = set()
    for place in range(len(chooser.recipes)):
        chooser.choose(place)
        drawn = preview_lines(chooser, 76, 15, UNICODE, is_low=True)
        lines = [harmless(fit(line, 76), 76) for line in drawn]
        pictures.add(assert_harmless(lines, 76, len(lines)))
    assert len(pictures) > 100


@pytest.mark.parametrize("size", SIZES)
def test_the_checklist_shows_them_and_nothing_happens(size):
    for text in TEXTS:
        check = Check(name="x", order=0, title="Title", published="2x", why="So.", look=lambda _: Verdict(
            status="pass", evidence=""))  # fmt: skip
        verdict = Verdict(status="fail", evidence=text, details=(text, text), advice=text, fix={"data.path": text})
        finding = Finding(check=check, verdict=verdict)
        row, lines = finding_row(finding, True, 5, size[0], UNICODE), finding_lines(finding, size[0], UNICODE)
        assert_harmless([fit(line, size[0]) for line in [row, *lines]], size[0], 1 + len(lines))


def phases_of(text: str) -> list[list[e.Event]]:
    begun = [e.RunStarted(name=text, task=text, device=text, pid=1, total_steps=9)]
    step = e.StepDone(
        step=1, epoch=0.1, loss_sum=9.0, tokens=9, samples=1, lr=1e-3, grad_norm=0.5, step_seconds=0.1,
        data_seconds=0.01, forward_seconds=0.01, backward_seconds=0.01, optimizer_seconds=0.01, tokens_per_second=9.0,
        samples_per_second=9.0, peak_memory_bytes=9,
    )  # fmt: skip
    plan = e.PlanMade(
        total_steps=9, steps_per_epoch=3, effective_batch_size=1, per_device_train_batch_size=1,
        gradient_accumulation_steps=1, parameters=9, memory_bytes=9, disk_bytes=9, duration_seconds=9.0,
        trained_parameters=3, base_model=text, lora_rank=4,
    )  # fmt: skip
    training = [
        *begun, plan, e.BaselinesMeasured(losses={text: 1.0}, eval_tokens=1, unit=text),
        e.PhaseChanged(phase="training"),
        step, e.TextSampled(step=1, prompt=text, text=text),
        e.CheckpointSaved(step=1, path=text, bytes=1, seconds=0.1, reason="scheduled"),
    ]  # fmt: skip
    finished = e.RunFinished(step=9, reason="done", loss=1.0, eval_loss=0.5, seconds=1.0, model_path=text)
    failed = e.RunFailed(step=1, message=text, log_path=text)
    return [
        [*begun, e.Progress(what=text, done=1, total=2, unit=text)], training, [*training, finished],
        [*training, failed], [*begun, failed],
    ]  # fmt: skip


@pytest.mark.parametrize("size", first_by_default(SIZES))
@pytest.mark.parametrize("glyphs", first_by_default([UNICODE, ASCII]), ids=["unicode", "ascii"])
def test_the_train_screen_shows_them_and_nothing_happens(size, glyphs):
    swept = 0
    for text in TEXTS:
        for events in [None, *phases_of(text)]:
            scene = TrainScene(
                state=None if events is None else fold(events), glyphs=glyphs,
                gauges=Gauges(cpu_share=0.5, gpus=(Gpu(index=0, name=text),)), sparks={},
                events=[(text, "text")], log_lines=[text], what_is_on=[text],
                log_open=swept % 2 == 0, resume=text, run_folder=text, offer=[text],
            )  # fmt: skip
            lines = ChartDrawing().draw(scene.run, ChartView(), size[0], 9, glyphs)
            for name in visible_parts(scene) & set(PARTS):
                draw, heading = PARTS[name]
                lines += [[(words, "dim")] for words in (heading(scene) if heading else ())]
                lines += draw(scene, size[0], 9)
            # As a pane does before it shows them.
            shown = assert_harmless([harmless(fit(line, size[0]), size[0]) for line in lines], size[0], len(lines))
            assert not glyphs.ascii or shown.replace("\u2026", "").isascii()
            swept += 1
    assert swept == 6 * len(TEXTS)


@pytest.mark.e2e
@pytest.mark.parametrize("ascii_only", first_by_default([False, True]), ids=["unicode", "ascii"])
def test_a_dialog_into_which_they_are_pasted_stays_in_its_frame(ascii_only):
    async def look() -> int:
        swept = 0
        dialog = TextDialog("Save as", [], "", lambda typed: typed or "nothing")
        app = BareApp(dialog, ascii_only=ascii_only)
        async with app.run_test(size=(80, 24)) as pilot:
            for text in TEXTS:
                app.post_message(Paste(text))
                await pilot.press("enter")
                strips = app.screen._compositor.render_strips()
                lines = [[(segment.text, "text") for segment in strip] for strip in strips]
                shown = assert_harmless(lines, 80, 24)
                assert shown.isascii() == ascii_only
                assert app.seen, "it stays on the screen with all of its frame"
                assert dialog.query_one(Input).value.isprintable()
                await pilot.press("ctrl+u")
                swept += 1
        return swept

    assert asyncio.run(look()) == len(TEXTS)


@pytest.mark.e2e
@pytest.mark.parametrize("ascii_only", first_by_default([False, True]), ids=["unicode", "ascii"])
def test_a_question_about_them_stays_in_its_frame(ascii_only):
    """Headings and lines are made safe by the dialog itself."""

    async def look() -> None:
        app = BareApp(TextDialog("first", [], "", str), ascii_only=ascii_only)
        async with app.run_test(size=(80, 24)) as pilot:
            for text in TEXTS:
                app.dialog = ChoiceDialog(text, [[(text, "text")], [("and plain", "dim")]], [("y", text, print)])
                await app.push_screen(app.dialog)
                await pilot.pause()
                strips = app.screen._compositor.render_strips()
                lines = [[(segment.text, "text") for segment in strip] for strip in strips]
                shown = assert_harmless(lines, 80, 24)
                assert shown.isascii() == ascii_only
                await app.pop_screen()

    asyncio.run(look())


@pytest.mark.e2e
def test_only_sequences_of_the_program_itself_are_sent_to_the_terminal(open_terminal, small_config, recipes, tmp_path):
    """At 80x24 through a whole run, and then all screens again at 200x50, which shows more of the same."""
    folder = tmp_path / HOSTILE.encode("utf-8", "replace")[:200].decode(errors="ignore")
    folder.mkdir()
    column, data = HOSTILE.encode("utf-8", "replace").decode(), folder / "\u202ed\x1b[2J.jsonl"
    rows = [text.encode("utf-8", "replace").decode()[:500] for text in TEXTS for _ in range(3)]
    data.write_text("".join(json.dumps({column: row + " and so on and on"}) + "\n" for row in rows))
    config = tomllib.loads(Path(small_config(steps=400, sample_steps=5)).read_text())
    config["data"] |= {"path": str(data), "text_column": column}
    (folder / "\x1b]0;x\x07.toml").write_text(tomli_w.dumps(config))

    terminal = open_terminal(str(folder / "\x1b]0;x\x07.toml"), prelude=EVERYTHING_IS_HOSTILE)
    terminal.wait_for("t start", "\u241b")
    terminal.press("end", "home", "2", "/", *"text_column", "enter", "enter")
    terminal.wait_for("text_column", "\u241b")
    # Terminals let no ESC through in what is pasted.
    pasted = "".join(TEXTS).replace(ESC, "").encode("utf-8", "replace")
    terminal.send(b"\x1b[200~" + pasted[:3000] + b"\x1b[201~")
    terminal.press("escape")
    terminal.wait_for("Enter edit")
    terminal.press("escape")
    terminal.wait_for("t start", gone="/ text_column")
    terminal.read_until_quiet()
    terminal.press("p")
    terminal.wait_for("Choose a recipe")
    terminal.press(*["down"] * (recipes + 2), "escape")
    terminal.wait_for("t start", gone="Choose a recipe")
    terminal.press("3")
    terminal.wait_for("finding", gone="looking")
    terminal.press(*["down"] * 12)
    terminal.start_run()
    terminal.wait_for("failed", "RuntimeError", seconds=90)
    assert [event for event in terminal.events if event["event"] == "TextSampled"]
    terminal.press("L")
    terminal.wait_for("log")
    terminal.resize(200, 50)
    terminal.wait_for("time of a step", "what it writes")
    terminal.press("L", "up", "up", "1", "2", "p")
    terminal.wait_for("Choose a recipe")
    terminal.press(*["down"] * (recipes // 2), "escape")
    terminal.wait_for("t start", gone="Choose a recipe")
    terminal.press("3")
    terminal.wait_for("finding")
    terminal.press("4", "q")
    terminal.read(1)
    terminal.press("q")
    assert terminal.wait_for_end() == 1

    assert {one for one in terminal.sequences if not OWN_SEQUENCES.fullmatch(one)} == set()
    assert not HIDDEN & set(terminal.raw.decode())
    assert "\u241b" in terminal.raw.decode(), "they were shown, made safe"
