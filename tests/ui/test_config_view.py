"""The config screen without a terminal: what is drawn, at every size and in every state."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest

from tui_trainer.config.document import Document
from tui_trainer.config.groups import groups
from tui_trainer.config.load import Request, all_settings
from tui_trainer.config.profiles import find_profile
from tui_trainer.planning.conflicts import setting_problems
from tui_trainer.ui.glyphs import ASCII, UNICODE, Glyphs
from tui_trainer.ui.screens.config_details import detail_lines
from tui_trainer.ui.screens.config_estimate import Figure, PlanSummary
from tui_trainer.ui.screens.config_model import ConfigModel
from tui_trainer.ui.screens.config_view import DETAIL_CELLS, DETAIL_LINES, draw_config
from tui_trainer.ui.spans import text_of, width_of

RATE, HEADS, MICRO = (
    "training.learning_rate",
    "model.scratch.num_attention_heads",
    "training.per_device_train_batch_size",
)
SCHEDULE = "training.lr_scheduler_type"
SIZES = [(80, 22), (120, 33), (200, 48)]
HOSTILE = "\x1b]0;title\x07[bold]x\u202e"


def summary(memory_mib: float = 186.3, share: float | None = 0.012) -> PlanSummary:
    return PlanSummary(
        memory_bytes=Figure(value=memory_mib * 2**20),
        memory_share=share,
        duration_seconds=Figure(value=70.0),
        disk_bytes=Figure(value=35.4 * 2**20),
        total_steps=Figure(value=500, exact=True),
    )


def opened(text: str = "", *assignments: str) -> ConfigModel:
    path = Path("my.toml") if text else None
    if path:
        path.write_text(text)
    request = Request(config_file=path, assignments=assignments)
    hardware = find_profile("cpu", "hardware")
    document = Document(
        request, lambda requested: (hardware, "") if requested == "auto" else (None, ""), setting_problems
    )
    return ConfigModel(document, {"data.path": ["sample:python-reference"]})


def drawn(model: ConfigModel, width: int = 80, height: int = 22, glyphs: Glyphs = UNICODE, **more) -> str:
    lines = draw_config(model, width=width, height=height, glyphs=glyphs, **{"plan": summary(), **more})
    assert len(lines) == height and {width_of(line) for line in lines} == {width}
    return text_of(lines)


def edited() -> ConfigModel:
    model = opened("profile = 'quickstart'\n[training]\nlearning_rate = 1e-3\n")
    model.document.set(HEADS, 3)
    model.document.set("data.path", f"/data/{HOSTILE}/books.txt")
    model.document.set("training.warmup_steps", 20)
    return model


def states() -> dict[str, ConfigModel]:
    """The screen in every state that it has."""
    found = {
        name: edited() for name in ("table", "problem", "typing", "wrong", "choosing", "filter", "nothing", "recipes")
    }
    found["empty"] = opened()
    found["broken file"] = opened("x = = 1\n")
    found["problem"].next_problem()
    for name in ("typing", "wrong"):
        found[name].show("data.path" if name == "typing" else RATE)
        found[name].edit()
        found[name].type_text("x")
    found["wrong"].accept()
    found["choosing"].show(SCHEDULE)
    found["choosing"].edit()
    found["filter"].start_filter()
    found["filter"].type_text("lr")
    found["nothing"].start_filter()
    found["nothing"].type_text("qqq")
    found["recipes"].open_recipes()
    found["recipes"].move(1)
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_every_state_fits_every_size_in_both_sets(size, glyphs):
    for name, model in states().items():
        for more in ({}, {"plan": None}, {"preset_plan": summary(120.3), "planning": True}):
            text = drawn(model, *size, glyphs, **more)
            assert not glyphs.ascii or text.isascii(), name
            assert "\x1b" not in text and "\u202e" not in text, name


def test_the_first_screen_says_what_it_starts_from_and_what_it_costs():
    lines = drawn(opened()).splitlines()
    assert lines[0].split("  ")[0] == "recipe quickstart" and lines[0].endswith("no problems")
    settings = [setting for _, _, members in groups() for setting in members]
    everyday = sum(not setting.advanced for setting in settings)
    assert lines[1].split() == ["setting", "value", "preset", str(everyday), "of", str(len(settings))]
    assert lines[2].startswith("\u2500\u2500 Start from \u2500")
    assert lines[3].split() == ["\u25b8", "profile", "quickstart"]
    assert lines[18].startswith("plan    memory ~186.3 MiB 1%     time ~1 min 10 s  disk ~35.4 MiB  steps 500")


def test_a_changed_value_is_marked_and_shown_beside_the_preset():
    model = edited()
    model.show(RATE)
    (line,) = [line for line in drawn(model).splitlines() if " learning_rate " in line]
    assert line.split() == ["\u25b8\u25cf", "learning_rate", "1e-3", "3e-3"]
    model.show(HEADS)
    (line,) = [line for line in drawn(model).splitlines() if " num_attention_heads " in line]
    assert line.split() == ["\u25b8\u2717", "num_attention_heads", "3", "4"]
    assert "my.toml (\u25cf 3 unsaved)" in drawn(model) and "\u2717 1 problem" in drawn(model)


def test_nothing_moves_when_a_value_changes():
    """Between two states of one screen only the lines of the row, its details, and the top differ."""
    model = opened()
    model.show(RATE)
    before = drawn(model).splitlines()
    model.bump(1)
    after = drawn(model).splitlines()
    differ = [number for number, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    row = next(number for number, line in enumerate(after) if " learning_rate " in line)
    details = set(range(12, 18))
    assert set(differ) <= {0, row} | details and {0, row} <= set(differ)


@pytest.mark.parametrize("key", sorted(set(all_settings()) - {"schema_version"}))
def test_all_that_is_known_of_a_setting_finds_room(key):
    model = opened()
    model.show(key)
    setting = all_settings()[key]
    for width, height in ((80, DETAIL_LINES), (DETAIL_CELLS, 12)):
        words = " ".join(text_of(detail_lines(model, width, height, UNICODE)).split())
        assert setting.help in words and setting.expected in words
        assert setting.memory in words and setting.speed in words
        for size in SIZES:
            assert f" {setting.name} " in drawn(model, *size)


def test_a_preview_shows_the_first_changes_and_counts_the_rest_at_every_size():
    model = opened("", "training.learning_rate=2e-3", "training.warmup_steps=7")
    model.open_recipes()
    for _ in model.chooser.recipes:
        name, count = model.chooser.recipe.name, len(model.chooser.preview.changes)
        for size in SIZES:
            lines = drawn(model, *size).splitlines()
            assert any(line.startswith(f"{UNICODE.pointer} {name} ") for line in lines)
            assert "of yours that it does not change" in "".join(lines) or not model.chooser.preview.stays
            head = next(number for number, line in enumerate(lines) if " It changes " in line)
            rows = list(takewhile(lambda line: line.startswith("   "), lines[head + 2 :]))
            rest = [int(row.split()[2]) for row in rows if row.startswith(f"   {UNICODE.ellipsis} and ")]
            assert len(rows) - len(rest) + sum(rest) == count or not count
            assert len(rows) >= min(count, 8), (name, size)
        model.move(1)


def test_wide_screens_add_groups_and_the_file():
    model = edited()
    model.show(RATE)
    text = drawn(model, 200, 48, preset_plan=summary(120.3))
    for title in (title for _, title, _ in groups()):
        assert f" {title} " in text
    assert "learning_rate = 1e-3" in text and "presets ~120.3 MiB 1%" in text
    assert "Saved as" not in drawn(model, 120, 33)


def test_more_memory_than_there_is_stands_out():
    line = draw_config(opened(), plan=summary(9000, 1.2), width=80, height=22, glyphs=UNICODE)[18]
    assert ("bad" in [role for text, role in line if "120%" in text]) and "~8.8 GiB" in text_of([line])
