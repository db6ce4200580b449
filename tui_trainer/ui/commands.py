"""Commands about a run, a model or this program: their arguments, introductions and results. Each runs in a process."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tui_trainer.errors import ConfigError, InputError, Problem, system_reason
from tui_trainer.files.local_paths import expand_home
from tui_trainer.launching.local_choices import Choice
from tui_trainer.tasks import find_task
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.command_dialogs import menu, open_tool
from tui_trainer.ui.dialogs import Answer, Dialog, Row, TextDialog
from tui_trainer.ui.new_run import ChoiceOfPath, DataDialog
from tui_trainer.ui.own_processes import Tool
from tui_trainer.ui.spans import Line, Role, paragraph
from tui_trainer.units import format_bytes, format_rate, format_seconds, quantity

if TYPE_CHECKING:
    from tui_trainer.importing.imported import Imported
    from tui_trainer.runs.folder import RunFolder
    from tui_trainer.ui.workbench import Workbench

_NAME: Final = 40
_SHOWN_LINES: Final = 40


def _gpu_option(bench: Workbench) -> list[str]:
    """Return the `--gpu` option for a command. While a run is training, the command uses the CPU."""
    gpu_choice = "none" if bench.run_is_alive else bench.chosen_gpu
    return [] if gpu_choice is None else ["--gpu", str(gpu_choice)]


def _cpu_words(bench: Workbench) -> list[str]:
    return ["This command runs on the CPU, because a run is training."] * bench.run_is_alive


def evaluate(bench: Workbench, folder: RunFolder, data: str = "") -> None:
    from tui_trainer.lines.evaluation import evaluation_lines

    name, rows_text = one_line(folder.name, _NAME), f"the rows of {one_line(data, 60)}" if data else "the held-out rows"
    arguments = ["evaluate", str(folder.root), *(["--data", data] if data else []), *_gpu_option(bench)]
    about = f"Computes the loss and scores of {name}, and of its base model if there is one, on {rows_text}."
    tool = Tool(bench, f"evaluating {name} on {rows_text}", arguments, done=lambda _: f"evaluated {name}")
    open_tool(bench, tool, f"Evaluate {name}", [about, *_cpu_words(bench)], evaluation_lines)


def gate(bench: Workbench, folder: RunFolder, suite: str = "") -> None:
    from tui_trainer.lines.gate import gate_lines

    name, suite_text = one_line(folder.name, _NAME), one_line(suite, 60) if suite else "the general suite"
    arguments = ["gate", str(folder.root), *(["--suite", suite] if suite else []), *_gpu_option(bench)]
    about = [
        f"Lets {name}, and its base model if there is one, answer the rows of {suite_text}, and checks the answers.",
        "It shows what was learnt, and what was right before and is wrong now.",
    ]

    def done(result: Mapping[str, Any]) -> str:
        return f"{name} {'passes' if result['passed'] else 'does not pass'} {suite_text}"

    tool = Tool(bench, f"gate of {name} on {suite_text}", arguments, done=done)
    open_tool(bench, tool, f"Gate for {name}", [*about, *_cpu_words(bench)], gate_lines)


def check_serving(bench: Workbench, folder: RunFolder, export: Path) -> None:
    """Ask for the address of a server, and compare its tokens and answers with those in an export of the run."""
    from tui_trainer.exporting.check_serving import SERVING_FILE

    name = one_line(folder.name, _NAME)

    def use(address: str) -> None:
        url, _, model = address.partition(" ")
        model_option = ["--model", model.strip()] if model.strip() else []
        arguments = ["check-serving", url, str(export), *model_option]

        def done(result: Mapping[str, Any]) -> str:
            return f"{one_line(url, 60)} {'agrees' if result['is_same'] else 'does not agree'} with {name}"

        about = [f"Compares the server's tokens, stops and answers in {one_line(str(export / SERVING_FILE))}."]
        tool = Tool(bench, f"comparison of {one_line(url, 60)} with {name}", arguments, done=done)
        open_tool(bench, tool, f"Server of {name}", about, lambda result, _: result["words"])

    hint = "The address of llama-server, vLLM or Ollama; after a space, the model's name if the server has several."
    _ask_name(bench, "Compare with a server", hint, "an address", use, "http://127.0.0.1:8080")


def _free_predictions_path(folder: RunFolder, data: str) -> Path:
    """Return a path for predictions that does not exist yet: beside the data file, or in the working directory."""
    source = expand_home(data).absolute()
    parent = source.parent if source.exists() else Path.cwd()
    base_name = re.sub(r"[^\w-]+", "-", source.name.partition(".")[0]) or "rows"
    stem = f"{base_name}.{folder.name[:_NAME]}"
    names = (f"{stem}{f'-{number}' if number > 1 else ''}.jsonl" for number in count(1))
    return next(path for name in names if not (path := parent / name).exists())


def predict(bench: Workbench, folder: RunFolder, data: str) -> None:
    name, path = one_line(folder.name, _NAME), _free_predictions_path(folder, data)

    def show(result: Mapping[str, Any], width: int = 0) -> list[str]:
        earlier_note = f", {result['rows_before']:,} of them in an earlier call" if result["rows_before"] else ""
        rate_text = format_rate(result["rows_per_second"], "rows")
        summary = f"{quantity(result['rows'], 'row')}{earlier_note}, {format_seconds(result['seconds'])}, {rate_text}"
        return [summary, str(result["out"])]

    arguments = ["predict", str(folder.root), "--data", data, "--out", str(path), *_gpu_option(bench)]
    about = [f"Runs {name} on every row of {one_line(data, 80)}.", f"Output: {one_line(str(path))}", *_cpu_words(bench)]
    about.append("If you cancel, starting the same prediction again continues where it stopped.")
    title = f"predictions for {one_line(data, 60)}"
    tool = Tool(bench, title, arguments, done=lambda result: ": ".join(show(result)[::-1]))
    open_tool(bench, tool, f"Predict with {name}", about, show)


def bench_run(bench: Workbench, folder: RunFolder) -> None:
    def show(result: Mapping[str, Any], width: int) -> list[str]:
        from tui_trainer.measure.inference import notes, speed_lines

        return [*speed_lines(result, width), *notes(result["variants"])]

    run_name = one_line(folder.name, _NAME)
    about = [
        f"Measures how fast {run_name} answers: one by one, in batches, with beams, quantized, compiled, exported.",
        "Each variant runs in a fresh process on held-out rows. This takes minutes.",
    ]
    tool = Tool(
        bench, f"bench {run_name}", ["bench", "run", str(folder.root), *_gpu_option(bench)], measures=True,
        done=lambda _: f"measured the speed of {run_name}",
    )  # fmt: skip
    open_tool(bench, tool, f"Speed of {run_name}", about, show)


def report(bench: Workbench, folder: RunFolder) -> None:
    """Write the report of a run in the background, without opening a dialog."""

    def write() -> tuple[str, Role]:
        from tui_trainer.reporting.page import write_report

        try:
            return f"wrote {'  '.join(map(str, write_report(folder, None)))}", "good"
        except OSError as error:
            return f"could not write the report: {error}", "bad"

    def show_result(result: tuple[str, Role]) -> None:
        bench.show_notice(*result)
        bench.app.draw()

    bench.background.run_work("report", write, show_result)


def _ask_name(
    bench: Workbench, heading: str, words: str, wanted: str, use: Callable[[str], None], text: str = ""
) -> None:
    def take(text: str) -> str | None:
        if not (name := text.strip()):
            return f"enter {wanted}"
        use(name)
        return ""

    rows: list[Row] = [(words, "dim"), ""]
    bench.app.open_next(TextDialog(heading, rows, text, take))


def _agreed_tool(bench: Workbench, what: str, heading: str, arguments: Sequence[str], done: str) -> None:
    """Open the dialog of a command that first shows what it would do, and asks the user to confirm."""
    tool = Tool(bench, what, arguments, yes=["--yes"], done=lambda _: done)
    open_tool(bench, tool, heading, show=lambda result, _: result["words"])


def publish(bench: Workbench, folder: RunFolder) -> None:
    label = one_line(folder.name, _NAME)

    def use(name: str) -> None:
        arguments, done = ["publish", str(folder.root), "--to", name], f"{label} is published as {one_line(name, 80)}"
        _agreed_tool(bench, f"publishing to {one_line(name, 60)}", f"Publish {label}", arguments, done)

    hint = "You first see what would be uploaded. A new repository is private."
    _ask_name(bench, "Publish to the hub as", hint, "OWNER/NAME", use)


def download(bench: Workbench, kind: str, name: str = "") -> None:
    """Ask for the name of a model or a data set (`kind`), show its size, and download it if the user confirms."""

    def use(name: str) -> None:
        arguments, label = ["download", *(["--data"] if kind == "data set" else []), name], one_line(name, 60)
        _agreed_tool(bench, f"downloading {label}", f"Download the {kind} {label}", arguments, f"downloaded {label}")

    hint = "A name on the hub, such as owner/name. The size is shown before the download."
    _ask_name(bench, f"Download a {kind}", hint, "OWNER/NAME", use, name)


def offer_download(bench: Workbench) -> None:
    kinds = (("m", "model"), ("d", "data set"))
    answers: list[Answer] = [(key, f"a {kind}", partial(download, bench, kind)) for key, kind in kinds]
    bench.app.ask("Download", ["Downloads from the Hugging Face hub into the local cache."], answers)


def install(bench: Workbench, names: Sequence[str]) -> None:
    names_text = one_line(" ".join(names), 60)
    message = f"installed {names_text}: restart tui-trainer to use it"
    _agreed_tool(bench, f"installing {names_text}", f"Install {names_text}", ["install", *names], message)


def offer_install(bench: Workbench) -> None:
    from tui_trainer.downloading.environment import installable_names

    hint = f"What to install: {', '.join(installable_names())}, or the name of a library that a check misses."
    _ask_name(bench, "Install", hint, "a name", lambda text: install(bench, text.split()))


def _offer_gate(bench: Workbench, folder: RunFolder, task: str, base: str, *, own_suite: bool) -> None:
    from tui_trainer.tasks.parts.suite import refuse_task

    try:
        refuse_task(find_task(task), "own" if own_suite else "", has_reference=bool(base))
    except InputError as error:
        bench.show_notice(str(error), "warn")
        return
    if own_suite:
        _ask_for_data(bench, "Suite", partial(gate, bench, folder))
    else:
        gate(bench, folder)


def more_answers(bench: Workbench, folder: RunFolder, task: str, base: str, *, has_model: bool) -> list[Answer]:
    """Return the items of the menu `more`: actions on a run that have no key of their own. `base` is its base model."""
    from tui_trainer.exporting.check_serving import SERVING_FILE
    from tui_trainer.ui.own_commands import own_answers

    answers, offer_gate = list[Answer](), partial(_offer_gate, bench, folder, task, base)
    if has_model:
        answers += [
            ("e", "evaluate", lambda: evaluate(bench, folder)),
            ("E", "evaluate on a file", lambda: _ask_for_data(bench, "Evaluate on", partial(evaluate, bench, folder))),
            ("g", "gate: is anything broken?", partial(offer_gate, own_suite=False)),
            ("G", "gate with your own suite", partial(offer_gate, own_suite=True)),
            ("p", "predict on a file", lambda: _ask_for_data(bench, "Predict", partial(predict, bench, folder))),
            ("b", "bench: measure how fast the model answers", lambda: bench_run(bench, folder)),
            ("u", "publish", lambda: publish(bench, folder)),
        ]
    if exports := sorted(folder.exports.glob(f"*/{SERVING_FILE}"), key=lambda path: path.stat().st_mtime):
        answers.append(("s", "compare with a server", partial(check_serving, bench, folder, exports[-1].parent)))
    return [*answers, ("r", "write a report", lambda: report(bench, folder)), *own_answers(bench, folder)]


def offer_more(bench: Workbench, folder: RunFolder, answers: Sequence[Answer]) -> None:
    bench.app.open(menu(f"More actions for {one_line(folder.name, _NAME)}", answers))


class FileDialog(DataDialog):
    """Dialog to choose data for a command rather than for a new run. `use` gets the chosen path."""

    def __init__(self, bench: Workbench, heading: str, use: Callable[[str], None]) -> None:
        super().__init__(bench)
        self.heading, self._use = heading, use

    def use(self, value: str) -> None:
        self._use(value)


def _ask_for_data(bench: Workbench, heading: str, use: Callable[[str], None]) -> None:
    bench.app.open_next(FileDialog(bench, heading, use))


class ImportedDialog(Dialog):
    """The settings that another tool's config is converted to, and its keys that are ignored. Enter applies them."""

    def __init__(self, bench: Workbench, path: str) -> None:
        super().__init__()
        self.heading = f"Import {one_line(path, 60)}"
        self._bench, self._path = bench, Path(path)
        self._imported: Imported | None = None
        self._problems: tuple[Problem, ...] = ()
        self._refused: list[str] = []
        """Unsupported keys of the file. The other keys can be imported without them."""

    def on_mount(self) -> None:
        self._read([])

    def _read(self, without: Sequence[str]) -> None:
        def read() -> tuple[Imported | None, list[str], tuple[Problem, ...]]:
            from tui_trainer.importing.imported import import_file
            from tui_trainer.importing.rules import REFUSALS

            try:
                imported = import_file(self._path, excluded_keys=without)
                refused_keys = list(dict.fromkeys(entry.key for entry in imported.left_out if entry.why in REFUSALS))
            except ConfigError as error:
                return None, [], error.problems
            try:
                imported.refuse_other_runs()
            except ConfigError as error:
                return imported, refused_keys, error.problems
            return imported, [], ()

        def show_result(result: tuple[Imported | None, list[str], tuple[Problem, ...]]) -> None:
            self._imported, self._refused, self._problems = result
            self.redraw()

        self._bench.background.run_work("import", read, show_result, "import")

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        import_key = (("enter", "import into Config"),) if self._imported and not self._problems else ()
        ignore_key = (("w", "ignore these keys"),) if self._refused else ()
        return (*import_key, *ignore_key, ("up down", "scroll"), ("escape", "back"))

    def lines(self, width: int) -> list[Line]:
        if self._imported is None and not self._problems:
            return [[("reading ...", "dim")]]
        lines = [line for problem in self._problems for line in paragraph(one_line(str(problem)), width, "bad")]
        report = self._imported.report_lines(width) if self._imported else []
        rows: list[Line] = [[(one_line(text), "text")] for text in report]
        return [*lines, [], *rows] if lines and rows else lines + rows

    def press(self, key: str, character: str | None) -> bool:
        if character == "w" and self._refused:
            self._read(self._refused)
        elif key == "enter" and self._imported and not self._problems:
            self._apply(self._imported)
            return False
        return True

    def _apply(self, imported: Imported) -> None:
        bench, name = self._bench, one_line(self._path.name, _NAME)
        if bench.document is None:
            bench.show_notice("the config is still loading", "dim")
            return
        try:
            bench.document.replace_values(imported.toml, f"the import of {name}")
        except ConfigError as error:
            bench.show_notice(one_line(str(error.problems[0])), "bad")
            return
        note = f", {quantity(len(imported.left_out), 'key')} ignored" if imported.left_out else ""
        asks = f"; {imported.questions[0]}" if imported.questions else ""
        undo = bench.app.key_of("config.undo")
        bench.note_change(f"imported {len(imported.rewrites)} settings from {name}{note}; {undo} to undo{asks}", "good")


def _configs_here() -> list[Choice]:
    suffixes = (".yaml", ".yml", ".json")
    paths = sorted(path for path in Path().iterdir() if path.suffix.lower() in suffixes and path.is_file())
    return [Choice(value=str(path), note=format_bytes(path.stat().st_size)) for path in paths]


class ConfigFileDialog(ChoiceOfPath):
    heading = "Import a config from another tool"

    def __init__(self, bench: Workbench) -> None:
        hint = "A YAML or JSON file of axolotl, LLaMA-Factory, TRL, DeepSpeed ... You first see the result."
        super().__init__(bench, "data.path", hint, _configs_here)

    def read_facts(self, value: str) -> object:
        try:
            with Path(expand_home(value)).open(encoding="utf-8", errors="replace") as file:
                return [line.rstrip() for _, line in zip(range(_SHOWN_LINES), file, strict=False)]
        except OSError as error:
            return [system_reason(error)]

    def fact_lines(self, value: str, result: object, width: int, height: int) -> list[Line]:
        rows = result if isinstance(result, list) else ["reading ..."]
        return [[(one_line(str(row), width), "dim")] for row in rows[: max(height, 0)]]

    def use(self, value: str) -> None:
        self._bench.app.open_next(ImportedDialog(self._bench, str(expand_home(value))))


def offer_import(bench: Workbench) -> None:
    bench.app.open(ConfigFileDialog(bench))
