"""The command that finds the fastest settings of a config here."""

import json
from pathlib import Path
from typing import Annotated

import typer

from tui_trainer.cli.application import AsJson, Asked, GpuName, about_a_config, app, option
from tui_trainer.cli.bench import end
from tui_trainer.standard_files import tell

_WIDTH = 200


@app.command()
@about_a_config
def tune(
    asked: Asked,
    gpu: GpuName = None,
    minutes: Annotated[float, typer.Option(min=0.2, max=1440, help="The most that it takes.")] = 5,
    write: Annotated[Path | None, option("--write", "OUT.toml", "Write the config with what was found.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the largest micro-batch and the fastest settings here, at the same effective batch and loss."""
    from tui_trainer.bench.tuning import Tuning, measured_table, micro_batch_line, notes_of
    from tui_trainer.config.toml_files import refuse_existing
    from tui_trainer.runs.json_fields import finite

    if write is not None:
        refuse_existing(write, "--write")
    found = Tuning(request=asked.request, gpu=gpu, seconds=60 * minutes, told=tell).find()
    result = finite(found.as_json())
    if as_json:
        print(json.dumps(result))
    else:
        lines = [micro_batch_line(found.tries), *measured_table(result, _WIDTH), *notes_of(result), found.sentence]
        print("\n".join(lines))
    if write is not None:
        from tui_trainer.config.save import to_toml
        from tui_trainer.config.toml_files import write_new
        from tui_trainer.launching.questions import with_settings
        from tui_trainer.launching.start import load_config

        write_new(write, to_toml(load_config(with_settings(asked.request, found.patch), gpu=gpu)))
        tell(f"wrote {write}: try tui-trainer plan {write}")
    end(result["variants"], found.cut_short)
