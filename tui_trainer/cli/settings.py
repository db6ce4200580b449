"""Commands on configs: plans, profiles, imports of other tools, and the guides."""

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from tui_trainer.cli.application import AsJson, ConfigOptions, GpuName, app, option, shares_options
from tui_trainer.errors import InputError, name_hint
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.terminal.standard_files import show_progress

_LEAST_WIDTH = 40
# Longer lines of prose are hard to read.
WIDEST_COLUMNS = 120


@app.command()
@shares_options
def plan(
    config: ConfigOptions,
    gpu: GpuName = None,
    cards: Annotated[str, option("--cards", "NAME,...", "Plan for other GPUs: `T4,A100,H100`, or `all`.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show the plan: batch, steps, memory, time and disk, each number with its reason."""
    from tui_trainer.launching.prepare import estimated_plan
    from tui_trainer.lines import plan_and_events as lines
    from tui_trainer.planning.summary import data_words

    if cards:
        from tui_trainer.launching.estimate_other_gpus import find_cards, plans_for, smallest_that_fits

        if gpu is not None:
            raise InputError("--gpu cannot be combined with --cards", hint="remove one of them")
        plans = list(plans_for(config.request, find_cards(cards), show_progress))
        if as_json:
            best_plan = smallest_that_fits(plans)
            smallest = best_plan.card.label if best_plan else None
            print(json.dumps({"cards": [card_plan.as_values() for card_plan in plans], "smallest": smallest}, indent=1))
        else:
            print("\n".join(lines.card_lines(plans, shutil.get_terminal_size((100, 24)).columns)))
        return
    loaded = config.load_to_start(gpu)
    run_plan = estimated_plan(loaded, show_progress, gpu=gpu)
    if as_json:
        print(run_plan.model_dump_json(indent=1))
        return
    print("\n".join(lines.plan_lines(run_plan, data_words(run_plan.config, loaded.data), loaded.notes)))


@app.command()
def profiles(name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)] = "") -> None:
    """List recipes and hardware profiles, with those that match this machine marked, or show one."""
    from tui_trainer.config.toml_files import all_profiles, find_profile
    from tui_trainer.hardware.probe import probe
    from tui_trainer.lines import plan_and_events as lines
    from tui_trainer.planning.hardware_match import why_it_matches

    recipes, hardware_profiles = all_profiles("recipes"), all_profiles("hardware")
    if name:
        named_profile = hardware_profiles.get(name) or find_profile(name, "recipes")
        print(named_profile.path.read_text(encoding="utf-8"), end="")
        return
    print("recipes (--profile NAME)")
    print("\n".join(lines.profile_line(profile, "") for profile in recipes.values()))
    print("\nhardware profiles (hardware_profile = NAME)")
    print("\n".join(lines.profile_line(p, why_it_matches(p, probe())) for p in hardware_profiles.values()))


@app.command("import")
def import_config(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Another tool's config, in YAML or JSON.")],
    to: Annotated[Path | None, option("--to", "OUT.toml", "Write the config to this file.")] = None,
    kind: Annotated[
        str, option("--as", "KIND", "The tool that FILE was written for, if the keys of FILE do not show it.")
    ] = "",
    processes: Annotated[
        int | None,
        option("--processes", "N", "Number of devices of the original run, to compute the total batch size.", min=1),
    ] = None,
    without: Annotated[list[str] | None, option("--without", "KEY,...", "Ignore these keys (changes the run).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite OUT.toml if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Import another tool's config, and show how each key is rewritten and which keys are ignored.

    Without --to, the TOML goes to standard output, and the report to standard error. With --to, the report goes to
    standard output."""
    from tui_trainer.importing.imported import import_file, write_config

    if force and to is None:
        raise InputError("--force works only with --to", hint="name the file with --to OUT.toml")
    if to is not None and to.suffix != ".toml":
        raise InputError("the file name does not end in .toml", where=str(to), hint=f"write --to {to.name}.toml")
    ignored_keys = [name.strip() for names in without or () for name in names.split(",") if name.strip()]
    imported = import_file(file, kind, processes, ignored_keys, to)
    imported.refuse_other_runs()
    if to is not None:
        write_config(imported, to, force=force)
    if as_json:
        print(json.dumps(imported.as_values(), indent=1))
        return
    report = imported.report_lines(max(shutil.get_terminal_size((100, 24)).columns, _LEAST_WIDTH))
    if to is not None:
        print("\n".join([*report, f"wrote {one_line(str(to))}; next: {imported.next_command(str(to))}"]))
    else:
        print("\n".join([*report, "--to OUT.toml writes the config to a file"]), file=sys.stderr)
        print(imported.toml, end="")


@app.command()
def guide(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="A guide. Without TOPIC, all are listed.", show_default=False)
    ] = "",
) -> None:
    """Print a guide on one topic, or list the topics."""
    from tui_trainer.lines.guides import FOLDER, guides

    if not topic:
        name_width = max(map(len, guides()))
        for name, title in guides().items():
            print(f"{name:<{name_width}}  {title}")
        print("\n`tui-trainer guide TOPIC` prints a guide; start with `tui-trainer guide start`")
        return
    # Links between guides have file names, so `NAME.md` is accepted too.
    name = topic.lower().removesuffix(".md")
    if name not in guides():
        raise InputError(f"there is no guide {one_line(topic, 40)!r}", hint=name_hint(name, guides()))
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.theme import Theme

    # Only the terminal's own colours are used, because those of rich need a dark background.
    console = Console(theme=Theme({"markdown.code": "bold"}))
    # Links are shown as plain text, because their targets cannot be opened from a terminal.
    markdown = Markdown(text, code_theme="ansi_light", hyperlinks=False)
    console.print(markdown, width=min(console.width, WIDEST_COLUMNS))
