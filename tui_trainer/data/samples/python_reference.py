"""Python's language reference, for models of text."""

import re
from functools import cache

from tui_trainer.data.samples import Sample


@cache
def python_reference() -> list[tuple[str, str]]:
    """The topics of `help()`: Python's language reference, one document per topic.

    Many topics repeat a section of a longer one. Each text is kept once, in its longest form: otherwise a held-out
    topic could be read in the training text.
    """
    from pydoc_data.topics import topics

    return [(f"topic '{name}'", topics[name]) for name in sorted(_without_repeats(topics))]


def _without_repeats(texts: dict[str, str]) -> list[str]:
    """Names of the texts that are not part of another one, the longest first."""
    # The words alone: a section is underlined and wrapped differently where it is part of a longer topic.
    underline = re.compile(r'^([*=\-~^"#])\1+$', flags=re.MULTILINE)
    bare = {name: " ".join(underline.sub("", text).split()) for name, text in texts.items()}
    kept: list[str] = []
    seen = ""
    for name in sorted(bare, key=lambda name: (-len(bare[name]), name)):
        if bare[name] and bare[name] not in seen:
            kept.append(name)
            seen += "\0" + bare[name]
    return kept


SAMPLE = Sample(
    name="python-reference",
    title="Python's language reference",
    description="the topics of Python's own help(), one document per topic",
    content=python_reference,
    is_table=False,
)
