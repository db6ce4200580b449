"""The installed program under a real pseudo-terminal, by mouse alone: what can be done with a key can be clicked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

WHEEL_UP, WHEEL_DOWN = 64, 65


class Mouse:
    """The mouse of a terminal, as it tells a program about it (SGR, mode 1006)."""

    def __init__(self, terminal) -> None:
        self.terminal = terminal

    def _send(self, button: int, x: int, y: int, kind: str = "M") -> None:
        self.terminal.send(f"\x1b[<{button};{x + 1};{y + 1}{kind}")

    def find(self, text: str, last: bool = False) -> tuple[int, int]:
        """A cell of the first or last place that shows the text."""
        self.terminal.wait_for(text)
        found = [(line.index(text), y) for y, line in enumerate(self.terminal.lines) if text in line]
        return found[-1 if last else 0]

    def click(self, text: str, *, times: int = 1, last: bool = False) -> None:
        x, y = self.find(text, last)
        for _ in range(times):
            self._send(0, x + 1, y)
            self._send(0, x + 1, y, "m")
        self.terminal.read(0.1)

    def turn(self, text: str, *, button: int = WHEEL_DOWN, until: Callable[[str], bool]) -> None:
        """Turn the wheel over a text until the screen is as wanted."""
        x, y = self.find(text)
        for _ in range(60):
            if until(self.terminal.text):
                return
            self._send(button, x, y)
            self.terminal.read(0.2)
        raise AssertionError(f"the wheel did not bring it:\n{self.terminal.text}")


@pytest.mark.e2e
def test_a_run_is_set_up_started_read_opened_again_and_left_by_mouse_alone(open_terminal, small_config):
    terminal = open_terminal(small_config(steps=60, sample_steps=0))
    mouse = Mouse(terminal)
    terminal.wait_for("t start", "training")

    mouse.click("2 Config")
    terminal.wait_for("hardware_profile", "can start")
    mouse.turn("hardware_profile", until=lambda text: " max_length " in text)
    mouse.click(" max_length ", times=2)
    terminal.wait_for("Enter accept", "Esc cancel")
    mouse.click("Esc cancel")
    terminal.wait_for("Enter edit", gone="Enter accept")

    mouse.click("3 Checklist")
    first = terminal.wait_for("pass", "\u2500\u2500 finding", " of ").splitlines()[1]
    mouse.turn("\u25b8 ", until=lambda text: text.splitlines()[1] != first)
    mouse.click("o open only")
    terminal.wait_for("only open checks")

    mouse.click("? help")
    terminal.wait_for("Keys", "Apply the fix that this check")
    mouse.click("Esc close")
    terminal.wait_for("finding", gone="Esc close")

    # It may be told in the last line meanwhile that it checks.
    for _ in range(5):
        mouse.click("t start")
        terminal.let_pass(3.0)
        if "Enter start" in terminal.text:
            break
    mouse.click("Enter start", last=True)
    terminal.wait_for("finished", seconds=180)
    mouse.click("smoothed")
    mouse.click("\u2524")
    terminal.wait_for("loss", "smoothed", "step ")

    mouse.click("5 Runs")
    terminal.wait_for("1 run", "finished")
    mouse.click("100%", times=2)
    terminal.wait_for("finished", "w try the model")

    mouse.click("1 Hardware")
    mouse.click("q quit")
    assert terminal.wait_for_end() == 0
