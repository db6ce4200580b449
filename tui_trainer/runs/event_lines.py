"""One line of JSON per event.

A line is ASCII and holds no line break whatever text is inside, so that a record cannot be forged or torn by data.
Numbers that are not finite are written as the strings "NaN", "Infinity" and "-Infinity": bare NaN is not JSON.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any, Final, get_type_hints

from tui_trainer.runs.events import KINDS, Event, Unknown
from tui_trainer.runs.json_fields import WHOLE_LIMIT, finite, parsed, reader, shortened, whole

LINE_LIMIT_BYTES: Final = 1_000_000
_SHAPES_LIMIT: Final = 64
_read_text: Final = reader(str)


def to_line(event: Event) -> str:
    """One line of JSON without its line break. Texts are cut where the line would pass `LINE_LIMIT_BYTES`."""
    data = _as_dict(event)
    line = _dumps(data)
    return line if len(line) < LINE_LIMIT_BYTES else _dumps(shortened(data))


def from_line(line: str | bytes) -> Event:
    """The event of one line. Raises ValueError when the line is not a whole, well-typed event.

    Fields that a known kind does not have are left out; a kind that is not known becomes `Unknown`.
    """
    try:
        data = parsed(line.encode() if isinstance(line, str) else line)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(data, dict):
        raise ValueError("not one JSON object")
    return _event(data)


def _event(data: dict[str, Any]) -> Event:
    kind = data.pop("event", None)
    if not isinstance(kind, str):
        raise ValueError("no kind of event")
    if (table := _TABLES.get(kind)) is None:
        at, step = _read_text(data.pop("at", "")), whole(data.pop("step", 0))
        return Unknown(kind=kind, at=at, step=step, data=data)
    shape = (*data, *map(type, data.values()))
    setters = table.setters.get(shape)
    if setters is None or any(abs(data[name]) >= WHOLE_LIMIT for name in table.whole_numbers):
        return table.read(data, shape)
    # Names and types were checked on an earlier line. Filling the slots takes a third of the time of a frozen __init__.
    event: Event = object.__new__(table.cls)
    for set_value, value in zip(setters, data.values()):  # noqa: B905 - strict costs 10 % here, and the shape is equal
        set_value(event, value)
    for set_value in table.set_empty:
        set_value(event, {})
    return event


def _as_dict(event: Event) -> dict[str, Any]:
    """In the order of the line: `event`, `at`, `step`, the rest."""
    if isinstance(event, Unknown):
        rest = {key: value for key, value in event.data.items() if key not in ("event", "at", "step")}
        return {"event": event.kind, "at": event.at, "step": event.step, **rest}
    table = _TABLES[_NAMES[type(event)]]
    data = {"event": table.kind, **dict(zip(table.readers, table.values(event), strict=True))}
    for name in table.left_out_empty:
        if not data[name]:
            del data[name]
    return data


def _dumps(data: dict[str, Any]) -> str:
    try:
        return json.dumps(data, allow_nan=False, default=_as_finite_dict)
    except ValueError:
        return json.dumps(finite(data), allow_nan=False, default=_as_finite_dict)


def _as_finite_dict(record: Any) -> Any:
    return finite(asdict(record))


class _Table:
    """How one kind is read and written: looked up once per process, not once per line."""

    def __init__(self, kind: str, cls: type[Event]) -> None:
        self.kind, self.cls = kind, cls
        hints = get_type_hints(cls)
        self.readers = {item.name: reader(hints[item.name]) for item in fields(cls)}
        self.values: Callable[[Event], tuple[Any, ...]] = attrgetter(*self.readers)
        self.left_out_empty = [item.name for item in fields(cls) if item.metadata.get("left_out_empty")]
        self.set_empty = [getattr(cls, name).__set__ for name in self.left_out_empty]
        self.whole_numbers = [name for name, read in self.readers.items() if read is whole]
        self.setters: dict[tuple[Any, ...], list[Callable[[Event, Any], None]]] = {}

    def read(self, data: dict[str, Any], shape: tuple[Any, ...]) -> Event:
        """Checks every field, and remembers the names and types of a complete line of plain numbers."""
        known = {"at": "", **{key: value for key, value in data.items() if key in self.readers}}
        values = {key: self.readers[key](value) for key, value in known.items()}
        try:
            event = self.cls(**values)
        except TypeError as error:
            raise ValueError(f"{self.kind}: {error}") from error
        plain = all(key == "at" or isinstance(value, int | float) for key, value in data.items())
        written = self.readers.keys() - self.left_out_empty
        if plain and data.keys() == written and len(self.setters) < _SHAPES_LIMIT:
            self.setters[shape] = [getattr(self.cls, key).__set__ for key in data]
        return event


_TABLES: Final = {kind: _Table(kind, cls) for kind, cls in KINDS.items()}
_NAMES: Final = {cls: kind for kind, cls in KINDS.items()}
