"""The command that reads other tools' configs."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from tui_trainer.cli.application import AsJson, app, option
from tui_trainer.errors import InputError


@app.command("import")
def import_config(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Another tool's config, in YAML or JSON.")],
    to: Annotated[Path | None, option("--to", "OUT.toml", "Write the config there.")] = None,
    kind: Annotated[str, option("--as", "KIND", "What it is, where its keys do not say it.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Write over OUT.toml where it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn another tool's config into ours, and show each rewrite and what was left out.

    The TOML goes to standard output and the report to standard error; with --to, the file and the report on
    standard output.
    """
    from tui_trainer.importing.imported import import_file, write_toml

    if force and to is None:
        raise InputError("--force writes over a file", hint="name the file with --to OUT.toml")
    if to is not None and to.suffix != ".toml":
        raise InputError("does not end in .toml", where=str(to), hint=f"write --to {to.name}.toml")
    imported = import_file(file, kind)
    imported.refuse_other_runs()
    if to is not None:
        write_toml(to, imported.toml, force=force)
    if as_json:
        print(json.dumps(imported.as_values(), indent=1))
    elif to is not None:
        print("\n".join([*imported.report, f"wrote {to}; next: {imported.next_command(str(to))}"]))
    else:
        print("\n".join([*imported.report, "--to OUT.toml writes it to a file"]), file=sys.stderr)
        print(imported.toml, end="")
