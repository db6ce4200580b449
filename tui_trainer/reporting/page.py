"""A report as one HTML page that needs nothing else: no script, no request, and all foreign text escaped."""

from html import escape

from tui_trainer.reporting.curves import Chart
from tui_trainer.reporting.drawing import COLOURS, as_html, chart_figure
from tui_trainer.reporting.facts import RunFacts
from tui_trainer.reporting.sections import Block, Code, Pairs, Table, Text, key_figures, sections, title
from tui_trainer.safe_text import visible

# Even a browser that is asked to may not fetch or run anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --back: #fff; --card: #f6f7f9; --text: #1b1f24; --dim: #5b6672; --line: #dde2e8;
  --c0: #2463c7; --c1: #c2570c; --c2: #19804a; --c3: #8b3fc4; --c4: #a3264f; --c5: #0f7c86; --good: #19804a;
  --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --card: #1d2127; --text: #e4e8ec; --dim: #98a3af;
  --line: #333a43; --c0: #6ea8fe; --c1: #f0a35e; --c2: #5fc98d; --c3: #c194f0; --c4: #f08aa8; --c5: #5cc8d2;
  --good: #5fc98d; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 20px 16px 60px; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 24px; line-height: 1.25; margin: 8px 0 16px; }
h1 b { font-size: 14px; padding: 3px 10px; border-radius: 12px; border: 1px solid; vertical-align: 3px;
  white-space: nowrap; }
h2 { font-size: 18px; margin: 32px 0 10px; padding-top: 14px; border-top: 1px solid var(--line); }
.good { color: var(--good); } .bad { color: var(--bad); } .dim { color: var(--dim); }
.figures { display: grid; gap: 10px; grid-template-columns: repeat(auto-fit, minmax(132px, 1fr)); }
.figures div { background: var(--card); border-radius: 8px; padding: 10px 12px; font-size: 13px; color: var(--dim); }
.figures b { display: block; font-size: 17px; white-space: nowrap; color: var(--text); font-weight: 600; }
.charts { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
figure { margin: 0; background: var(--card); border-radius: 8px; padding: 12px; }
figcaption { font-weight: 600; }
figcaption .dim { font-weight: 400; }
.legend { font-size: 13px; color: var(--dim); display: flex; flex-wrap: wrap; gap: 2px 14px; min-height: 22px; }
.legend b { color: var(--text); font-weight: 600; }
.legend i { display: inline-block; width: 14px; height: 3px; margin-right: 5px; vertical-align: 4px;
  background: var(--dim); }
.legend i.level { height: 0; background: none; border-top: 2px dashed var(--dim); }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 12px; fill: var(--dim); }
polygon { opacity: 0.85; }
polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.grid { stroke: var(--line); stroke-width: 1; fill: none; }
.level { stroke: var(--dim); stroke-width: 1.2; stroke-dasharray: 5 4; fill: none; }
.table { overflow-x: auto; margin: 10px 0; }
table { border-collapse: collapse; font-size: 14px; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); }
th { color: var(--dim); font-weight: 600; }
.pairs th { font-weight: 400; width: 34%; min-width: 110px; }
td { min-width: 70px; }
p { margin: 8px 0; }
pre { background: var(--card); border-radius: 8px; padding: 12px; overflow-x: auto; white-space: pre-wrap;
  font: 13px/1.45 ui-monospace, monospace; margin: 8px 0; }
footer { margin-top: 40px; font-size: 13px; color: var(--dim); }
"""
_COLOURS = "".join(
    f"polyline.c{at} {{ stroke: var(--c{at}); }} polygon.c{at}, circle.c{at} {{ fill: var(--c{at}); }}"
    f" .legend i.c{at} {{ background: var(--c{at}); }}\n"
    for at in range(COLOURS)
)
_BAD = frozenset({"failed", "interrupted"})


def to_html(facts: RunFacts) -> str:
    """The whole page."""
    name, state = as_html(facts.folder.name), as_html(facts.status)
    figures = "".join(f"<div>{as_html(label)}<b>{as_html(value)}</b></div>" for label, value in key_figures(facts))
    role = "bad" if facts.status in _BAD else "good" if facts.status == "finished" else "dim"
    body = "".join(
        f"<section><h2>{as_html(section.title)}</h2>{_blocks(section.blocks)}</section>\n"
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


def _blocks(blocks: tuple[Block, ...]) -> str:
    if blocks and all(isinstance(block, Chart) for block in blocks):
        return f'<div class="charts">{"".join(map(_block, blocks))}</div>'
    return "".join(map(_block, blocks))


def _block(block: Block) -> str:
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
