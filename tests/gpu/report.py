"""The lines of `tests.gpu.day` as a table of the guide: what was measured, on which card, when, and what failed.

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
from typing import Any

from tests.gpu.day import RESULTS, SHARES, read_lines

BEGIN = "<!-- figures of a GPU: python -m tests.gpu.report FOLDER --write tui_trainer/guides/gpu.md -->"
END = "<!-- end of them -->"
_GIB = 2**30
_LONGEST_CELL = 300
Figures = Mapping[str, Any]
Row = tuple[str, str]


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


def error_of(planned: Any, measured: Any) -> float:
    return number(planned) / number(measured) - 1


def within(errors: Sequence[float], tolerance: float) -> str:
    return f"{sum(abs(error) <= tolerance for error in errors)} of {len(errors)} within {tolerance:.0%}"


def planned_words(planned: Any, measured: Any, unit: Callable[[Any], str]) -> str:
    """`planned 3.1 GiB, measured 3.0 GiB (+3 %)`; without a plan, the measured alone."""
    if planned is None:
        return f"measured {unit(measured)}, none planned"
    return f"planned {unit(planned)}, measured {unit(measured)} ({error_of(planned, measured) * 100:+.0f} %)"


def seconds(value: Any) -> str:
    return f"{number(value):.3g} s"


def start_rows(figures: Figures) -> Iterator[Row]:
    if facts := figures.get("facts"):
        if facts.get("nvidia_smi") is None:
            yield "`diagnose` says what `nvidia-smi` says", "no `nvidia-smi` here"
        else:
            different = ", ".join(map(cell, facts["different"])) or "nothing"
            yield "`diagnose` says what `nvidia-smi` says", f"different: {different}"
    for key, title in (("quickstart", "the quickstart learns"), ("llama", "a Llama made from its config trains")):
        if run := figures.get(key):
            words = f"{number(run['parameters']):,.0f} parameters, loss {number(run['first_loss']):.3f} to "
            words += f"{number(run['last_loss']):.3f} in {number(run['steps']):.0f} steps, "
            words += f"{number(run['tokens_per_second']):,.0f} tokens/s; step "
            words += planned_words(run.get("planned_step_seconds"), run["step_seconds"], seconds)
            if run.get("device") != "cpu":
                words += "; memory " + planned_words(run["planned_allocated_bytes"], run["peak_memory_bytes"], gib)
                if run.get("planned_host_bytes") and run.get("host_peak_bytes"):
                    words += "; host " + planned_words(run["planned_host_bytes"], run["host_peak_bytes"], gib)
            yield title, words


def tests_rows(figures: Figures) -> Iterator[Row]:
    if "collected" in figures:
        yield "`pytest -m gpu`", f"{number(figures['collected']):.0f} collected"
        return
    failed, skipped = figures["failed"], number(figures["skipped_count"])
    words = f"{number(figures['passed']):.0f} passed, {len(failed)} failed, {skipped:.0f} skipped"
    if failed:
        words += ": " + ", ".join(cell(name, 80) for name in failed)
    if skipped:
        words += f" ({'; '.join(cell(reason, 80) for reason in figures['skipped'])})"
    yield "`pytest -m gpu`", words


def memory_rows(figures: Figures) -> Iterator[Row]:
    found = {str(row["name"]): error_of(row["predicted_bytes"], row["measured_bytes"])
             for row in figures.get("configurations", ())}  # fmt: skip
    if found:
        worst = max(found, key=lambda name: abs(found[name]))
        words = f"{within(list(found.values()), 0.10)}, {within(list(found.values()), 0.20)}; "
        yield "peak memory is as planned", words + f"farthest {cell(worst)} ({found[worst] * 100:+.0f} %)"
    if figures.get("failed"):
        yield "configurations not measured", f"{len(figures['failed'])}: {cell(figures['failed'][0])}"


def speed_rows(figures: Figures) -> Iterator[Row]:
    for race in figures.get("races", ()):
        title = f"speed, {cell(race['method'])}, {cell(race['shape'])} ({number(race['parameters']):,.0f} parameters)"
        parts = []
        for name, one in race["contenders"].items():
            words = f"{cell(name)} {number(one['median_tokens_per_second']):,.0f} real tokens/s"
            words += f", {gib(one['peak_memory_bytes'])}" if one.get("peak_memory_bytes") else ""
            words += f", MFU {number(one['mfu']) * 100:.0f} %" if one.get("mfu") is not None else ""
            if one.get("ours_times") is not None:
                words += f" (ours {number(one['ours_times']):.2f} times)"
            parts.append(words)
        mine, planned = race["contenders"].get("ours"), race["planned"]
        if mine and mine.get("peak_memory_bytes"):
            parts.append("memory of ours " + planned_words(planned["allocated_bytes"], mine["peak_memory_bytes"], gib))
        if mine:
            parts.append("step of ours " + planned_words(planned["step_seconds"], mine["step_seconds"], seconds))
        parts += [f"{cell(name)} left out: {cell(why, 120)}" for name, why in race.get("left_out", {}).items()]
        yield title, "; ".join(parts)


def switches_rows(figures: Figures) -> Iterator[Row]:
    for row in figures.get("switches", ()):
        on, off = row["on"], row["off"]
        times = number(on["tokens_per_second"]) / number(off["tokens_per_second"])
        words = f"{number(off['tokens_per_second']):,.0f} to {number(on['tokens_per_second']):,.0f} real tokens/s "
        words += f"({times:.2f} times)"
        if on["peak_memory_bytes"] and off["peak_memory_bytes"]:
            words += f", {gib(off['peak_memory_bytes'])} to {gib(on['peak_memory_bytes'])}"
        if on.get("problems"):
            words += f"; {cell(on['problems'][0], 120)}"
        yield f"{cell(row['switch'])} off and on ({cell(row['method'])})", words


def resume_rows(figures: Figures) -> Iterator[Row]:
    for row in figures.get("runs", ()):
        words = f"killed at step {number(row['killed_at_step']):.0f} and resumed: "
        words += "equal to the bit" if row["equal"] is True else f"different: {cell(', '.join(row['different']))}"
        words += "; run again: " + ("equal" if row["repeated_equal"] is True else "different")
        optim = f", {cell(row['training__optim'])}" if row.get("training__optim") else ""
        yield f"kill -9 and resume ({cell(row['method'])}{optim})", words


def time_rows(figures: Figures) -> Iterator[Row]:
    rows = figures.get("configurations", ())
    if not rows:
        return
    rest = [error_of(row["predicted_rest_seconds"], row["rest_seconds"]) for row in rows]
    steps = [error_of(row["planned_step_seconds"], row["step_seconds"]) for row in rows if row["planned_step_seconds"]]
    words = f"the rest of a run, foretold after ten steps: {within(rest, 0.15)}, {within(rest, 0.25)}"
    if steps:
        words += (
            f"; steps, before anything ran here: {within(steps, 0.25)}, farthest {max(steps, key=abs) * 100:+.0f} %"
        )
    yield "runs take the time that is said", words


def trace_rows(figures: Figures) -> Iterator[Row]:
    if compiled := figures.get("compiled"):
        yield "compiled once", graphs_words(compiled["graphs"]) + f"; {seconds(compiled['step_seconds'])} a step"
    words = f"{number(figures['steps']):.0f} steps of {seconds(figures['step_seconds'])}"
    if figures["device_busy_share"] is None:
        yield "no step waits for the card", f"{words}; without a card nothing waits for one"
        return
    found = ", ".join(f"{cell(where)} {number(n):.0f}" for where, n in figures["synchronisations"].items()) or "none"
    words += f", waits: {found}; not on the list: {', '.join(map(cell, figures['unexpected'])) or 'none'}"
    words += f"; the card is busy for {number(figures['device_busy_share']) * 100:.0f} % of the time"
    yield "no step waits for the card", words


def graphs_words(graphs: Mapping[str, Any]) -> str:
    """Graphs at the start; then those of the first call and of all later ones of each part."""
    parts = [f"{sum(map(number, graphs.get('__init__', ()))):.0f} graphs at the start"]
    for key, title in (("take_step", "steps"), ("evaluate", "evaluations"), ("sample", "texts")):
        first, *later = [number(count) for count in graphs.get(key, ())] or [0.0]
        parts.append(f"{first:.0f} and then {sum(later):.0f} in {title}")
    return ", ".join(parts)


ROWS: dict[str, Callable[[Figures], Iterator[Row]]] = {
    "start": start_rows, "tests": tests_rows, "memory": memory_rows, "speed": speed_rows, "switches": switches_rows,
    "resume": resume_rows, "time": time_rows, "trace": trace_rows,
}  # fmt: skip


def report(lines: Sequence[Mapping[str, Any]]) -> str:
    """Markdown of the lines: a table, then what there is no figure of and why."""
    by_name = {str(line["name"]): line for line in lines}
    table, missing = [], []
    for name in SHARES:
        line = by_name.get(name)
        if line is None:
            missing.append(f"{name}: not run")
            continue
        figures = line.get("figures")
        figures = figures if isinstance(figures, Mapping) else {}
        if line.get("state") != "done":
            words = f"{name}: {cell(line.get('state'))} {cell(line.get('reason', ''))}".rstrip()
            errors = line.get("error")
            missing.append(words + (f": {cell(errors[-1])}" if isinstance(errors, list) and errors else ""))
        try:
            for title, words in ROWS[name](figures):
                table.append(f"| {title} | `--only {name}` | {words} |")
        except (TypeError, KeyError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
            if line.get("state") == "done":
                missing.append(f"{name}: its figures cannot be read ({type(error).__name__}: {cell(error, 100)})")
        left_out = figures.get("left_out")
        for what, why in left_out.items() if isinstance(left_out, Mapping) else ():
            missing.append(f"{name}, {cell(what)}: {cell(why)}")
    head = ["| on a GPU | `python -m tests.gpu.day --out FOLDER` with | measured on " + machine_words(by_name) + " |",
            "|---|---|---|"]  # fmt: skip
    ends = ["", "Without a figure:", "", *(f"- {words}" for words in missing)] if missing else []
    return "\n".join([*head, *table, *ends]) + "\n"


def machine_words(by_name: Mapping[str, Mapping[str, Any]]) -> str:
    facts = figures_of_machine(by_name)
    date = cell(facts.get("date", "an unknown day"))
    libraries = facts.get("libraries")
    versions = libraries if isinstance(libraries, Mapping) else {}
    words = ", ".join(f"{name} {cell(versions[name])}" for name in ("torch", "transformers") if versions.get(name))
    found = facts.get("card")
    if facts.get("dry") is not False or not isinstance(found, Mapping):
        return f"a CPU, in a dry run: figures of no card; {words}, {date}"
    title = (
        f"{cell(found.get('name'))} ({cell(found.get('memory.total'))} MiB, driver {cell(found.get('driver_version'))})"
    )
    return f"{title}, {words}, {date}"


def figures_of_machine(by_name: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    facts = by_name.get("machine", {}).get("figures")
    return facts if isinstance(facts, Mapping) else {}


def has_figures_of_a_card(lines: Sequence[Mapping[str, Any]]) -> bool:
    facts = figures_of_machine({str(line["name"]): line for line in lines})
    is_real = facts.get("dry") is False and isinstance(facts.get("card"), Mapping)
    return is_real and any(line["name"] in SHARES and line.get("figures") for line in lines)


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
    lines = read_lines(chosen.folder)
    if not lines:
        print(f"{chosen.folder / RESULTS} has no lines", file=sys.stderr)
        return 2
    table = report(lines)
    print(table, end="")
    if chosen.write is None:
        return 0
    if not has_figures_of_a_card(lines):
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
