"""Tags of words, and the entities that they mark.

Entities are read leniently, as conlleval does and seqeval in its default mode: B and S begin one, so does whatever
follows O, E or S, and so does a change of the type. An I- that nothing begins is therefore the first word of an entity,
and IOB1, IOB2, BIOES and BILOU (whose L and U are E and S) need one rule only.

Source: conlleval of the CoNLL-2000 shared task, startOfChunk and endOfChunk; seqeval 1.2.2, get_entities.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

Scheme = Literal["IOB1", "IOB2", "BIOES", "plain"]

OUTSIDE = "O"
UNTYPED = "entity"  # what an entity is called whose tags are B and I alone
_TAG = re.compile(r"([BIMELSU])(?:-(.+))?", re.DOTALL)
_AS = {"M": "I", "L": "E", "U": "S"}
_ORDER = "BIES"


class Entity(NamedTuple):
    """Words `start` to `end`, which is not in it any more."""

    start: int
    end: int
    kind: str


class Parts(NamedTuple):
    """A tag in two: B, I, E, S or O, and the type of the entity."""

    prefix: str
    kind: str


_NOTHING = Parts(OUTSIDE, "")


@lru_cache(maxsize=4096)
def parts_of(tag: str) -> Parts:
    """What is no tag of an entity counts as O."""
    found = _TAG.fullmatch(tag)
    if not found:
        return _NOTHING
    return Parts(_AS.get(found[1], found[1]), found[2] or UNTYPED)


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence, in order."""
    found: list[Entity] = []
    before, start = _NOTHING, 0
    for place, now in enumerate((*map(parts_of, tags), _NOTHING)):
        changes = before.kind != now.kind
        if before.prefix != OUTSIDE and (before.prefix in "ES" or now.prefix in "OBS" or changes):
            found.append(Entity(start, place, before.kind))
        if _begins(before, now):
            start = place
        before = now
    return found


def _begins(before: Parts, now: Parts) -> bool:
    if now.prefix == OUTSIDE:
        return False
    return now.prefix in "BS" or before.prefix in "OES" or before.kind != now.kind


def marks_entities(names: Iterable[str]) -> bool:
    """Whether a set of tags speaks of entities; otherwise each tag stands for itself, as a part of speech does.

    Tags without a type are taken for B and I of entities where both are there, and O.
    """
    inside = set(names) - {OUTSIDE}
    if all("-" in name and _TAG.fullmatch(name) for name in inside):
        return bool(inside)
    return {"B", "I", OUTSIDE} <= set(names) and all(len(name) == 1 and _TAG.fullmatch(name) for name in inside)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """O first, then type by type, B before I before E before S; plain tags by the alphabet."""
    names = set(names)
    if not marks_entities(names):
        return tuple(sorted(names))

    def place(name: str) -> tuple[str, int, str]:
        prefix, kind = parts_of(name)
        return ("", 0, "") if prefix == OUTSIDE else (kind, _ORDER.index(prefix), name)

    return tuple(sorted(names, key=place))


@dataclass(slots=True)
class TagSurvey:
    """How the tags of many sentences are written. `counts` has every tag with its number.

    `loose` entities begin with I-, `needless` ones with a B- that IOB1 writes as I-.
    """

    counts: Counter[str] = field(default_factory=Counter)
    loose: int = 0
    needless: int = 0

    def add(self, tags: Sequence[str]) -> None:
        self.counts.update(tags)
        before = _NOTHING
        for now in map(parts_of, tags):
            if now.prefix == "I" and _begins(before, now):
                self.loose += 1
            elif now.prefix == "B" and before.kind != now.kind:
                self.needless += 1
            before = now

    @property
    def scheme(self) -> Scheme:
        """BIOES stands for BILOU too."""
        if not marks_entities(self.counts):
            return "plain"
        if any(parts_of(name).prefix in "ES" for name in self.counts if name != OUTSIDE):
            return "BIOES"
        return "IOB1" if self.loose and not self.needless else "IOB2"
