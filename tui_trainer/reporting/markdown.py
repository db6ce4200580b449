"""A report as Markdown. Foreign text cannot become a heading, a link, a cell or HTML."""

import re

from tui_trainer.reporting.curves import Chart
from tui_trainer.reporting.facts import RunFacts
from tui_trainer.reporting.sections import Block, Code, Pairs, Table, Text, chart_summary, key_figures, sections, title
from tui_trainer.safe_text import one_line, visible

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&])")
_TICKS = re.compile("`+")


def to_markdown(facts: RunFacts) -> str:
    lines = [f"# {escaped(title(facts))}", "", *_block(Pairs(key_figures(facts)))]
    for section in sections(facts):
        lines += [f"## {section.title}", ""]
        for block in section.blocks:
            lines += _block(block)
    return "\n".join(lines)


def escaped(text: str) -> str:
    """On one line, with every sign of Markdown as itself. Words between backticks of ours stay code elsewhere."""
    return _SPECIAL.sub(r"\\\1", one_line(text))


def _block(block: Block) -> list[str]:
    match block:
        case Chart():
            return _table(chart_summary(block))
        case Pairs(rows=rows):
            return _table(Table(("", ""), tuple(rows))) if rows else []
        case Table():
            return _table(block)
        case Text(lines=lines):
            return [part for line in lines for part in (escaped(line), "")]
        case Code(text=text):
            # Longer than any row of backticks inside.
            fence = "`" * max(3, *(len(found) + 1 for found in _TICKS.findall(text)), 3)
            return [fence, visible(text), fence, ""]


def _table(table: Table) -> list[str]:
    rows = [table.head, ("---",) * len(table.head)]
    lines = ["| " + " | ".join(map(escaped, row) if row[0] != "---" else row) + " |" for row in rows]
    return [*lines, *("| " + " | ".join(map(escaped, row)) + " |" for row in table.rows), ""]
