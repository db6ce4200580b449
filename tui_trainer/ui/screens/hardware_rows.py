"""What the sections of the Hardware screen are made of: titles, labelled rows, texts that continue below themselves."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len

from tui_trainer.hardware.describe import Row
from tui_trainer.hardware.diagnosis import Diagnosis
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, Role, pad, title_rule, wrapped
from tui_trainer.units import GIB

Section = list[Line]
LABEL = 11
BAR = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What is drawn, into a column of `width` cells. `profile` is the hardware profile's name and why."""

    diagnosis: Diagnosis
    hardware: Hardware
    gauges: Gauges | None
    profile: tuple[str, str]
    wide: bool
    """Beside other columns: some facts have a section of their own there."""
    width: int
    glyphs: Glyphs


def titled(machine: Machine, title: str, lines: list[Line]) -> Section:
    return [title_rule(title, machine.width, machine.glyphs), *lines]


def rows_of(machine: Machine, rows: list[Row]) -> list[Line]:
    return [line for label, text in rows for line in row_of(machine, label, text)]


def row_of(machine: Machine, label: str, text: str, role: Role = "text") -> list[Line]:
    return hanging([(pad(label, LABEL), "dim")], text, machine.width, role)


def hanging(start: Line, text: str, width: int, role: Role) -> list[Line]:
    """The text behind `start`, continued below itself."""
    indent = sum(cell_len(part) for part, _ in start)
    blank: Line = [(" " * indent, "text")]
    return [[*(blank if index else start), (piece, role)] for index, piece in enumerate(wrapped(text, width - indent))]


def percent(share: float | None) -> str:
    return " -- %" if share is None else f"{share:4.0%}".replace("%", " %").rjust(5)


def gib_of(used: int | None, total: int | None) -> str:
    """`  0.8 of  23.5 GiB`, as wide for every card."""
    parts = ["   --" if count is None else f"{count / GIB:5.1f}" for count in (used, total)]
    return f"{parts[0]} of {parts[1]} GiB"
