"""The results of `tests.gpu.day` as tables of the guide: what was measured, on which card, when, and what failed.

    python -m tests.gpu.report FOLDER [--write tui_trainer/guides/gpu.md]

Prints Markdown; with --write it replaces what stands between the two markers of that file. Every figure comes from a
line. Lines of a dry run are printed and never written: they are of no card.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from tests.gpu.experiments import EXPERIMENTS
from tests.gpu.results import FILE, Results, read
from tests.gpu.trace import GROUPS

BEGIN = "<!-- figures of a GPU: python -m tests.gpu.report FOLDER --write tui_trainer/guides/gpu.md -->"
END = "<!-- end of them -->"
_GIB = 2**30
_LONGEST_CELL, _LAST_LOSSES = 300, 10
Figures = Mapping[str, Any]


def cell(value: object, limit: int = _LONGEST_CELL) -> str:
    """Any text as one cell of a table: a line, without what Markdown or a terminal would take for more."""
    text = "".join(x if x.isprintable() else " " for x in str(value))
    text = " ".join(text.split())[:limit]
    return re.sub(r"([\\|`<>\[\]*_#])", r"\\\1", text)


def number(value: Any) -> float:
    """Raises ValueError for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"not a number: {str(value)[:60]!r}")
    return float(value)


def gib(value: Any) -> str:
    return f"{number(value) / _GIB:.1f} GiB"


def seconds(value: Any) -> str:
    return f"{number(value):.3g} s"


def planned(plan: Any, measured: Any, unit: Callable[[Any], str]) -> str:
    """`planned 3.1 GiB, measured 3.0 GiB (+3 %)`; without a plan, the measured alone."""
    if plan is None:
        return f"measured {unit(measured)}, none planned"
    return f"planned {unit(plan)}, measured {unit(measured)} ({(number(plan) / number(measured) - 1) * 100:+.0f} %)"


def words_of(figures: Figures) -> Iterator[str]:
    """What the figures of one experiment come to, whichever these are."""
    if "import_seconds" in figures:
        yield "imports: " + ", ".join(f"{cell(name)} {seconds(x)}" for name, x in figures["import_seconds"].items())
    if "diagnose" in figures:
        different = ", ".join(map(cell, figures["different"])) or "nothing"
        yield (
            f"`diagnose` and `nvidia-smi`: different: {different}" if figures["nvidia_smi"] else "no `nvidia-smi` here"
        )
    for name, value in figures.get("copies", {}).items():
        yield f"copies {cell(name)} {number(value) / 1e9:.0f} GB/s"
    for name, value in figures.get("launches", {}).items():
        yield f"a launch {number(value):.1f} µs" if name == "host_microseconds" else f"{number(value):.1f} µs with wait"
    if "tokens_per_second" in figures:
        yield f"{number(figures['tokens_per_second']):,.0f} tokens/s"
        yield "step " + planned(figures["planned_step_seconds"], figures["step_seconds"], seconds)
        if figures["device"] != "cpu":
            yield "memory " + planned(figures["planned_allocated_bytes"], figures["peak_memory_bytes"], gib)
        last = [number(loss) for loss in figures["losses"]][-_LAST_LOSSES:]
        yield f"loss {number(figures['losses'][0]):.4f} to {mean(last):.4f} (mean of the last {len(last)} steps)"
        yield from map(cell, figures["problems"][:1])
    for name, one in figures.get("contenders", {}).items():
        words = f"{cell(name)} {number(one['median_tokens_per_second']):,.0f} real tokens/s"
        words += f", {gib(one['peak_memory_bytes'])}" if one.get("peak_memory_bytes") else ""
        yield words + (f" (ours {number(one['ours_times']):.2f} times)" if one.get("ours_times") is not None else "")
    for name, why in figures.get("left_out", {}).items():
        yield f"{cell(name)} left out: {cell(why, 120)}"
    if "killed_at_step" in figures and "files" in figures:
        different = ", ".join(map(cell, figures["different"]))
        yield f"killed at step {number(figures['killed_at_step']):.0f}, resumed: " + (
            f"different: {different}" if different else f"{number(figures['files']):.0f} files equal to the bit"
        )
    if "predicted_bytes" in figures:
        yield "memory " + planned(figures["predicted_bytes"], figures["measured_bytes"], gib)
    if "predicted_rest_seconds" in figures:
        yield "rest of the run " + planned(figures["predicted_rest_seconds"], figures["rest_seconds"], seconds)
        yield "step " + planned(figures["planned_step_seconds"], figures["step_seconds"], seconds)
    if "collected" in figures:
        yield f"{number(figures['collected']):.0f} tests collected"
    counts = [f"{number(figures[state]):.0f} {state}" for state in ("passed", "failed", "skipped") if state in figures]
    if counts:
        yield ", ".join(counts)
    if figures.get("unexpected"):
        yield f"waits that are not listed: {', '.join(map(cell, figures['unexpected']))}"
    if figures.get("left_behind"):
        yield f"not brought back: {cell(figures['left_behind'])}"


def rate_rows(figures: Figures) -> Iterator[str]:
    """TFLOP/s of products, and milliseconds and TFLOP/s of attention kernels or why they refuse, a line each."""
    for key in ("products", "attention", "plans"):
        for name, value in figures.get(key, {}).items():
            found = (
                f"{cell(k.replace('_', ' '))} {cell(v) if k == 'refused' else f'{number(v):.4g}'}"
                for k, v in value.items()
            )
            yield f"| {key} | {cell(name)} | {', '.join(found)} |"


def trace_row(figures: Figures) -> str:
    groups = figures["groups"]
    times = [f"{number(groups[name]['milliseconds']):.1f}" for name in GROUPS]
    kernels = sum(number(groups[name]["kernels"]) for name in GROUPS)
    rate, busy = figures["product_teraflops"], figures["device_busy_share"]
    more = [
        f"{kernels:.0f}",
        f"{number(rate):.3g}" if rate else "none",
        f"{number(busy) * 100:.0f} %" if busy else "none",
    ]
    ran = ", ".join(cell(name, 60) for name in list(groups["attention"]["largest"])[:3])
    return " | ".join([*times, *more, ran or "none"])


def report(results: Results) -> str:
    """Markdown of the results: experiments, traced steps by groups, then what there is no figure of and why."""
    table, traced, rates, missing = [], [], [], []
    for name in EXPERIMENTS:
        outcome = results.experiments.get(name)
        if outcome is None:
            missing.append(f"{name}: not run")
            continue
        if outcome.state != "done":
            end = [cell(outcome.reason), *map(cell, outcome.error[-1:])]
            missing.append(f"{name}: {cell(outcome.state)} {': '.join(filter(None, end))}".rstrip())
        try:
            words = "; ".join(words_of(outcome.figures))
            row = f"| {name} | {trace_row(outcome.figures)} |" if "groups" in outcome.figures else ""
            rates += rate_rows(outcome.figures)
        except (TypeError, KeyError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
            missing.append(f"{name}: its figures cannot be read ({type(error).__name__}: {cell(error, 100)})")
            continue
        here = machine_words(results.machines, outcome.call)
        differs = f" (on {here})" if here != machine_words(results.machines, 1) else ""
        table += [f"| {name}{differs} | {words} |"] if words else []
        traced += [row] if row else []
    missing += [f"{cell(name, 120)}: {cell(test.state)} {cell(test.reason)}"
                for name, test in results.tests.items() if test.state not in ("passed", "skipped")]  # fmt: skip
    text = [f"| experiment | {machine_words(results.machines, 1)} |", "|---|---|", *table]
    if traced:
        heads = [*(f"{name}, ms a step" for name in GROUPS), "kernels", "TFLOP/s of products", "busy", "attention by"]
        text += ["", f"| traced | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|", *traced]
    if rates:
        text += ["", "| what | shape or kernel | TFLOP/s, milliseconds |", "|---|---|---|", *rates]
    text += ["", "Without a figure:", "", *(f"- {words}" for words in missing)] if missing else []
    return "\n".join(text) + "\n"


def machine_words(machines: Sequence[Mapping[str, Any]], call: int) -> str:
    """The card that a call had (they count from 1), its libraries and the day."""
    facts = machines[call - 1] if 0 < call <= len(machines) else {}
    date, versions, found = cell(facts.get("date", "an unknown day")), facts.get("libraries"), facts.get("card")
    versions = versions if isinstance(versions, Mapping) else {}
    words = ", ".join(f"{name} {cell(versions[name])}" for name in ("torch", "transformers") if versions.get(name))
    if facts.get("dry") is not False or not isinstance(found, Mapping):
        return f"a CPU, in a dry run: figures of no card; {words}, {date}"
    memory, driver = cell(found.get("memory.total")), cell(found.get("driver_version"))
    return f"{cell(found.get('name'))} ({memory} MiB, driver {driver}), {words}, {date}"


def has_figures_of_a_card(results: Results) -> bool:
    of_cards = all(machine.get("dry") is False and machine.get("card") for machine in results.machines)
    return bool(results.machines) and of_cards and any(one.figures for one in results.experiments.values())


def written(text: str, table: str) -> str:
    """The text with the table between its markers. Raises ValueError where it does not have each of them once."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ValueError(f"it needs the lines {BEGIN} and {END}, once and in this order")
    return f"{before}{BEGIN}\n\n{table}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace the table of this file")
    chosen = parser.parse_args(arguments)
    results = read(chosen.folder / FILE)
    if not results.machines:
        print(f"{chosen.folder / FILE} has no lines", file=sys.stderr)
        return 2
    table = report(results)
    print(table, end="")
    if chosen.write is None:
        return 0
    if not has_figures_of_a_card(results):
        print(f"{chosen.write} stays as it is: these are figures of no card", file=sys.stderr)
        return 2
    try:
        text = written(chosen.write.read_text(encoding="utf-8"), table)
    except (OSError, ValueError) as error:
        print(f"{chosen.write}: {error}", file=sys.stderr)
        return 2
    chosen.write.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
