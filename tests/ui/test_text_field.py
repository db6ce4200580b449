"""The field that is typed into: editing keys, pastes, and what of a long text is shown."""

from __future__ import annotations

import pytest

from tui_trainer.ui.spans import fit
from tui_trainer.ui.text_field import LIMIT_CHARACTERS, TextField


def typed(field: TextField, *keys: str) -> bool:
    """Press keys as the application hands them on; whether the last one was for a text."""
    taken = True
    for key in keys:
        taken = field.press({" ": "space"}.get(key, key), key if len(key) == 1 else None)
    return taken


@pytest.mark.parametrize(
    ("keys", "text", "position"),
    [
        (["X"], "one twoX", 8),
        (["home", "X"], "Xone two", 1),
        (["ctrl+a", "X", "ctrl+e", "Y"], "Xone twoY", 9),
        (["left", "left", "X"], "one tXwo", 6),
        (["left"] * 20 + ["X"], "Xone two", 1),
        (["home", "right", "X"], "oXne two", 2),
        (["right"] * 20 + ["X"], "one twoX", 8),
        (["backspace"], "one tw", 6),
        (["backspace"] * 20, "", 0),
        (["delete"], "one two", 7),
        (["home", "delete"], "ne two", 0),
        (["ctrl+w"], "one ", 4),
        (["ctrl+w", "ctrl+w"], "", 0),
        (["left", "ctrl+u"], "o", 0),
        ([" ", "ctrl+w"], "one ", 4),
        (["\u6f22"], "one two\u6f22", 8),
    ],
    ids=lambda value: "-".join(dict.fromkeys(value)) if isinstance(value, list) else None,
)
def test_editing_keys_of_a_field(keys, text, position):
    field = TextField("one two")
    assert typed(field, *keys)
    assert (field.text, field.cursor) == (text, position)


@pytest.mark.parametrize("key", ["up", "down", "tab", "f5", "ctrl+x", "escape"])
def test_a_field_leaves_keys_that_are_not_for_a_text(key):
    field = TextField("one")
    assert not typed(field, key)
    assert field.text == "one"


@pytest.mark.parametrize("sign", ["x", "\u6f22"], ids=["narrow", "wide"])
@pytest.mark.parametrize("width", [10, 40])
def test_the_sign_under_the_cursor_is_always_on_the_screen(sign, width):
    field = TextField(sign * 60)
    swept = 0
    for _ in range(61):
        shown = fit(field.line(width), width)
        assert "cursor" in [role for _, role in shown]
        typed(field, "left")
        swept += 1
    assert swept == 61 and field.cursor == 0


def test_a_paste_of_anything_stays_one_harmless_line_of_bounded_length():
    field = TextField("ab")
    typed(field, "left")
    field.insert("\r\n1\x1b[2J\t2\u202e\n3\n")
    assert field.text.startswith("a1") and field.text.endswith("3b") and field.text.isprintable()
    field.insert("y" * 10 * LIMIT_CHARACTERS)
    assert len(field.text) == LIMIT_CHARACTERS
    assert field.text.endswith("yb"), "what stood behind the cursor is kept"
