"""A hundred texts that would act on a terminal, in everything that is shown: none acts, on any screen."""

from __future__ import annotations

import json
import re
import tomllib
import unicodedata
from itertools import cycle
from pathlib import Path

import pytest
import tomli_w
from textual.events import Paste

from tests.ui.canned import GIB, LORA, CannedRun, made_up, open_canned, trained
from tests.ui.pictures import in_event_loop
from tests.ui.screens import Screens
from tui_trainer.advice.checklist import Finding
from tui_trainer.advice.contract import Rule, Verdict
from tui_trainer.hardware import probe as probe_module
from tui_trainer.hardware.facts import Driver, Gpu, GpuProcess, Hardware, Place
from tui_trainer.runs import events as e
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui import app as app_module

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


@pytest.fixture(autouse=True)
def no_clock(request, monkeypatch):
    if not request.node.get_closest_marker("e2e"):
        monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)


def hidden_in(text: str) -> set[str]:
    """The signs that act on a terminal, or hide what stands there."""
    return {sign for sign in text if unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp")} | (HIDDEN & set(text))


async def assert_harmless(screens: Screens) -> str:
    """Nothing on the screen acts, nothing hides, every line is as wide as the screen."""
    text = await screens.settled()
    strips = screens.app.screen._compositor.render_strips()
    assert {strip.cell_length for strip in strips} == {screens.app.size.width} and len(
        strips
    ) == screens.app.size.height
    assert not hidden_in("".join(strip.text for strip in strips)), text
    return text


def test_each_of_a_hundred_texts_is_made_safe():
    assert len(set(TEXTS)) == len(TEXTS) >= 100
    assert [text for text in TEXTS if hidden_in(one_line(text))] == []


def hardware_of(texts) -> Hardware:
    """A machine that takes a text from `texts` wherever it has one."""
    process = GpuProcess(pid=1, name=next(texts), user=next(texts), memory_bytes=GIB)
    cards = tuple(
        Gpu(index=n, name=next(texts), uuid=next(texts), memory_bytes=1 << 37, memory_free_bytes=1,
            processes=(process,), problem=next(texts) if n else "")
        for n in range(2)
    )  # fmt: skip
    return Hardware(
        cpu_name=next(texts), usable_cores=2, memory_bytes=1 << 34, memory_available_bytes=1 << 33, gpus=cards,
        platform=next(texts), python_version=next(texts), host=next(texts), cpu_flags=frozenset({next(texts)}),
        driver=Driver(version=next(texts), cuda=(12, 4), problem=next(texts)),
        libraries={"torch": next(texts), "peft": next(texts)},
        places=(Place(label="runs", path=next(texts), free_bytes=1, total_bytes=2, writable=False),),
    )  # fmt: skip


def findings() -> list[Finding]:
    verdicts = (Verdict(status="fail", evidence=text, details=(text,), advice=text, fix={"data.path": text})
                for text in TEXTS)  # fmt: skip
    return [
        Finding(rule=Rule(name=f"x{n}", order=n, title="Title", why="So.", published_gain="2x"), verdict=verdict)
        for n, verdict in enumerate(verdicts)
    ]


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


@pytest.mark.full
@in_event_loop
async def test_no_screen_and_no_dialog_shows_a_text_that_acts(recipes, monkeypatch):
    texts = cycle(TEXTS)
    runs = [made_up(text[:200], "finished", 500, 1.4, path=Path("/data") / f"{n}", task=text, model=text)
            for n, text in enumerate(TEXTS)]  # fmt: skip
    monkeypatch.setattr("tui_trainer.runs.overview.Overviews.read", lambda *_: runs)
    async with open_canned(size=(120, 80)) as screens:
        app, bench = screens.app, screens.bench
        for _ in range(2):
            machine = hardware_of(texts)
            monkeypatch.setattr(probe_module, "read_hardware", lambda machine=machine: machine)
            await screens.press("r")
            await screens.until(lambda machine=machine: bench.hardware.cpu_name == machine.cpu_name)
            await assert_harmless(screens)
        probe_module.probe.cache_clear()

        bench._checked(findings())
        await screens.press("3")
        for _ in range(len(TEXTS) // 40):
            await assert_harmless(screens)
            await screens.press("pagedown")

        await screens.press("2")
        for text in TEXTS[::24]:
            for key in ("data.text_column", "output.name", "data.path"):
                bench.document.set(key, text)
            bench.note_change(text)
            await assert_harmless(screens)
        await screens.press("p")
        for _ in range(3):
            await assert_harmless(screens)
            await screens.press(*["down"] * 4)
        await screens.press("escape", "S")
        for n in range(0, len(TEXTS), 40):
            app.post_message(Paste("".join(TEXTS[n : n + 40])[:400]))
            await assert_harmless(screens)
            await screens.press("ctrl+u")
        await screens.press("escape")

        for n in range(0, len(TEXTS), 56):
            first, *others = TEXTS[n : n + 56]
            begun = trained(3, **{**LORA, "base_model": first})
            begun[0] = e.RunStarted(name=first, task="char_lm", device=others[0], pid=1, total_steps=9)
            samples = [e.TextSampled(step=3, prompt=text, text=text) for text in others]
            bench.run = CannedRun([*begun, *samples, e.RunFailed(step=3, message=others[1], log_path=others[2])], False)
            app.run_changed()
            await screens.press("4")
            await assert_harmless(screens)

        await screens.press("5")
        for _ in range(len(TEXTS) // 40):
            await assert_harmless(screens)
            await screens.press("pagedown")
        for text in TEXTS[::40]:
            app.ask(text, [[(text, "text")], [("and plain", "dim")]], [("y", text, print)])
            await assert_harmless(screens)
            await screens.press("escape")


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
    terminal.wait_for("finding", gone="checking")
    terminal.press(*["down"] * 12)
    terminal.start_run()
    terminal.wait_for("failed", "RuntimeError", seconds=90)
    assert [event for event in terminal.events if event["event"] == "TextSampled"]
    terminal.press("L")
    terminal.wait_for("log")
    terminal.resize(200, 50)
    terminal.wait_for("step time", "samples")
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
