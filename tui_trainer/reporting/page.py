"""A report as Markdown, and as one HTML page that needs nothing else: no script, no request. Foreign text cannot become
a heading, a link, a cell or HTML.
"""

import re
from html import escape
from pathlib import Path

from tui_trainer.reporting.curves import Chart
from tui_trainer.reporting.drawing import COLOURS, as_html, chart_figure
from tui_trainer.reporting.facts import RunFacts, facts_of
from tui_trainer.reporting.sections import Block, Code, Pairs, Table, Text, chart_summary, key_figures, sections, title
from tui_trainer.runs.folder import RunFolder, write_atomically
from tui_trainer.safe_text import as_markdown, visible

_TICKS = re.compile("`+")


def to_markdown(facts: RunFacts) -> str:
    lines = [f"# {as_markdown(title(facts))}", "", *_markdown(Pairs(key_figures(facts)))]
    for section in sections(facts):
        lines += [f"## {section.title}", ""]
        for block in section.blocks:
            lines += _markdown(block)
    return "\n".join(lines)


def _markdown(block: Block) -> list[str]:
    match block:
        case Chart():
            return _markdown_table(chart_summary(block))
        case Pairs(rows=rows):
            return _markdown_table(Table(("", ""), tuple(rows))) if rows else []
        case Table():
            return _markdown_table(block)
        case Text(lines=lines):
            return [part for line in lines for part in (as_markdown(line), "")]
        case Code(text=text):
            # Longer than any row of backticks inside.
            fence = "`" * max(3, *(len(found) + 1 for found in _TICKS.findall(text)), 3)
            return [fence, visible(text), fence, ""]


def _markdown_table(table: Table) -> list[str]:
    lines = ["| " + " | ".join(map(as_markdown, row)) + " |" for row in (table.head, *table.rows)]
    return [lines[0], "| " + " | ".join(["---"] * len(table.head)) + " |", *lines[1:], ""]


# Even a browser that is asked to may not fetch or run anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = "\n" + Path(__file__).with_name("page.css").read_text(encoding="utf-8")
_COLOURS = "".join(
    f"polyline.c{at} {{ stroke: var(--c{at}); }} polygon.c{at}, circle.c{at} {{ fill: var(--c{at}); }}"
    f" .legend i.c{at} {{ background: var(--c{at}); }}\n"
    for at in range(COLOURS)
)
NAMES = ("report.md", "report.html")
_BAD = frozenset({"failed", "interrupted"})


def to_html(facts: RunFacts) -> str:
    name, state = as_html(facts.folder.name), as_html(facts.status_words)
    figures = "".join(f"<div>{as_html(label)}<b>{as_html(value)}</b></div>" for label, value in key_figures(facts))
    role = "bad" if facts.status in _BAD else "good" if facts.status == "finished" else "dim"
    body = "".join(
        f"<section><h2>{as_html(section.title)}</h2>{_html_of(section.blocks)}</section>\n"
        for section in sections(facts)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{as_html(title(facts))}</title><style>{_STYLE}{_COLOURS}</style></head>\n<body>"
        f'<h1>{name} <b class="{role}">{state}</b></h1>\n<div class="figures">{figures}</div>\n'
        f"{body}<footer>Written by tui-trainer from the journal of the run.</footer></body></html>\n"
    )


def _html_of(blocks: tuple[Block, ...]) -> str:
    if blocks and all(isinstance(block, Chart) for block in blocks):
        return f'<div class="charts">{"".join(map(_html, blocks))}</div>'
    return "".join(map(_html, blocks))


def _html(block: Block) -> str:
    match block:
        case Chart():
            return chart_figure(block)
        case Pairs(rows=rows):
            cells = "".join(f"<tr><th>{as_html(name)}</th><td>{as_html(value)}</td></tr>" for name, value in rows)
            return f'<div class="table"><table class="pairs">{cells}</table></div>'
        case Table(head=head, rows=rows):
            titles = "".join(f"<th>{as_html(cell)}</th>" for cell in head)
            cells = "".join(f"<tr>{''.join(f'<td>{as_html(cell)}</td>' for cell in row)}</tr>" for row in rows)
            return f'<div class="table"><table><tr>{titles}</tr>{cells}</table></div>'
        case Text(lines=lines):
            return "".join(f"<p>{as_html(line)}</p>" for line in lines)
        case Code(text=text):
            return f"<pre>{escape(visible(text))}</pre>"


def write_report(folder: RunFolder, out: Path | None = None) -> list[Path]:
    """The Markdown and the page, private as all of a run is, into `out`, a folder that is there, or the run's own.

    Returns the files. Raises OSError.
    """
    facts, paths = facts_of(folder), [(out or folder.root) / name for name in NAMES]
    for path, text in zip(paths, (to_markdown(facts), to_html(facts)), strict=True):
        write_atomically(path, text.encode("utf-8", "replace"), durable=False)
    return paths
