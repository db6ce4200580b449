"""Which rows the table of settings has: groups, settings, and what a filter finds."""

from __future__ import annotations

from dataclasses import dataclass

from tui_trainer.config.fields import Setting
from tui_trainer.config.groups import groups

# Letters in order, anywhere: shown only where nothing fits better.
LOOSE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A group's heading (`setting` is None) or a setting; `matched` are places in its name that the filter found."""

    table: str
    title: str
    setting: Setting | None = None
    matched: tuple[int, ...] = ()


def table_rows(wanted: frozenset[str], query: str) -> list[Row]:
    """The wanted settings under their headings; with a query only those that match, the best group and row first."""
    matches = {setting.key: match_of(query, setting) for _, _, settings in groups() for setting in settings}
    best = min((match[0] for key, match in matches.items() if match and key in wanted), default=0)
    found: list[tuple[int, list[Row]]] = []
    for table, title, settings in groups():
        ranked = [
            (match[0], Row(table=table, title=title, setting=setting, matched=match[1]))
            for setting in settings
            if setting.key in wanted and (match := matches[setting.key]) and (match[0] < LOOSE or best >= LOOSE)
        ]
        if ranked:
            ranked.sort(key=lambda pair: pair[0])
            found.append((ranked[0][0], [Row(table=table, title=title), *(row for _, row in ranked)]))
    found.sort(key=lambda pair: pair[0])
    return [row for _, rows in found for row in rows]


def match_of(query: str, setting: Setting) -> tuple[int, tuple[int, ...]] | None:
    """How well a query fits (0 is best) and which letters of the name it found; None when it does not fit.

    Best is the beginning of the name, then the beginning of a word in it, any part of it, a part of the whole key, what
    the help begins with (`lora` finds r, whose help is `LoRA: ...`), beginnings of words (`lr` finds learning_rate),
    and from LOOSE on letters in order anywhere in the name.
    """
    if not query:
        return 0, ()
    query = query.lower().replace(" ", "_")
    name, key = setting.name.lower(), setting.key.lower()
    place = name.find(query)
    if place >= 0:
        word = place == 0 or name[place - 1] == "_"
        return (0 if place == 0 else 1 if word else 2), tuple(range(place, place + len(query)))
    if query in key:
        start = key.index(query) - (len(key) - len(name))
        return 3, tuple(at for at in range(start, start + len(query)) if at >= 0)
    if setting.help.lower().startswith(f"{query}:"):
        return 4, ()
    if (letters := _in_order(query, name, at_words=True)) is not None:
        return 10 + letters[-1] - letters[0], letters
    if (letters := _in_order(query, name, at_words=False)) is not None:
        return LOOSE + letters[-1] - letters[0], letters
    return None


def _in_order(query: str, text: str, *, at_words: bool) -> tuple[int, ...] | None:
    """Places of the letters one after the other; `at_words`: each begins a word or follows the one before it."""

    def places(letters: str, start: int) -> tuple[int, ...] | None:
        if not letters:
            return ()
        for at in range(start, len(text)):
            fits = not at_words or at == 0 or not text[at - 1].isalnum() or (at == start > 0)
            if text[at] == letters[0] and fits and (rest := places(letters[1:], at + 1)) is not None:
                return (at, *rest)
        return None

    return places(query, 0) if len(query) <= len(text) else None
