"""Makes rows of the catalogue of models (`tui_trainer/models/catalogue.json`) from config.json files.

uv run python -m tests.catalogue_rows CONFIG.json --name NAME            # print them
uv run python -m tests.catalogue_rows CONFIG.json --name NAME --write    # put them into the data file
"""

import json
from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tui_trainer.models.catalogue import DATA, CatalogueEntry, all_entries, find_catalogue_entry
from tui_trainer.models.config_json import ALIASES
from tui_trainer.terminal.safe_text import one_line


def make_entry(config: Mapping[str, Any], name: str, **facts: Any) -> CatalogueEntry:
    """The row of a config.json. `facts` are the other fields of a row; those that are not given stay as they are in
    the row of that name, where there is one.

    Raises ValueError where a field that the catalogue does not keep decides the count of the weights.
    """
    kept_fields = {field for entry in all_entries() for field in _fields(entry.config)}.union(*ALIASES.values())
    # Newer files say `dtype`, and those of models with towers where they describe the language model.
    told = {**config}
    dtypes = (place.get(name) for place in (told, told.get("text_config", {})) for name in ("torch_dtype", "dtype"))
    told["torch_dtype"] = next(filter(None, dtypes), None)
    kept = _kept(told, kept_fields)
    parameters = _count_parameters(kept)
    if parameters != (whole := _count_parameters(config)):
        raise ValueError(f"{name}: {parameters} parameters by the fields that are kept, {whole} by all of config.json")
    row: dict[str, Any] = {"weights_bytes": None, "gated": False, "license": "not said"}
    if old := find_catalogue_entry(name):
        row = {field.name: getattr(old, field.name) for field in fields(old)}
    row |= {field: value for field, value in facts.items() if value is not None}
    files = "" if row["weights_bytes"] is None else " and the metadata of its safetensors files"
    row.setdefault("source", f"huggingface.co/{name}: config.json{files}")
    return CatalogueEntry(**row | {"name": name, "parameters": parameters, "config": kept})


def _fields(config: Mapping[str, Any]) -> Iterator[str]:
    """Names of fields, with those inside of fields."""
    for field, value in config.items():
        yield field
        yield from _fields(value) if isinstance(value, Mapping) else ()


def _kept(config: Mapping[str, Any], fields: Set[str]) -> dict[str, Any]:
    """Without other fields. null decides where a window is by default."""
    return {
        field: _kept(value, fields) if isinstance(value, Mapping) else value
        for field, value in config.items()
        if field in fields and (value is not None or field == "sliding_window")
    }


def as_json(entries: Sequence[CatalogueEntry]) -> str:
    """The text of a data file: a line for each fact of a row."""
    rows = []
    for entry in entries:
        facts = asdict(entry)
        lines = ",\n".join(f"  {json.dumps(field)}: {json.dumps(facts[field])}" for field in facts if field != "name")
        rows.append(f" {json.dumps(entry.name)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(rows) + "\n}\n"


def _count_parameters(config: Mapping[str, Any]) -> int:
    """Of the architecture that a config.json names, as transformers builds it, on torch's meta device."""
    import torch
    import transformers

    values = dict(config)
    built = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        model: Any = getattr(transformers, config["architectures"][0])._from_config(built)
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    # transformers ties the head of every T5, unless the files have one of their own, as those of version 1.1.
    own_head = head is not None and head.weight is table.weight and not config.get("tie_word_embeddings", True)
    more = table.weight.numel() if own_head else 0
    return int(more + sum(parameter.numel() for parameter in model.parameters()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make rows from config.json files: print them, or write them into the data file."""
    parser = ArgumentParser(prog="python -m tests.catalogue_rows", description=main.__doc__)
    parser.add_argument("configs", nargs="+", type=Path, help="config.json files, or folders with one")
    parser.add_argument("--name", nargs="+", required=True, help="the name on the hub, for each config")
    parser.add_argument("--source", help="where the numbers stand; else the model's page on the hub")
    parser.add_argument("--license", help="by the hub's name for it")
    parser.add_argument("--weights-bytes", type=int, help="of all tensors in the safetensors files")
    parser.add_argument("--gated", action=BooleanOptionalAction, help="whether the hub asks for an account")
    parser.add_argument("--write", action="store_true", help="put the rows into the data file")
    told = vars(parser.parse_args(arguments))
    paths, names, write = told.pop("configs"), told.pop("name"), told.pop("write")
    if len(paths) != len(names):
        parser.error(f"{len(paths)} configs and {len(names)} names")
    files = [path / "config.json" if path.is_dir() else path for path in paths]
    made = []
    for file, name in zip(files, names, strict=True):
        try:
            made.append(make_entry(json.loads(file.read_text("utf-8")), name, **told))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            parser.error(f"{file}: {type(error).__name__}: {one_line(str(error), 200)}")
    if write:
        rows = {entry.name: entry for entry in (*all_entries(), *made)}
        DATA.write_text(as_json(list(rows.values())), "utf-8")
    else:
        print(as_json(made), end="")


if __name__ == "__main__":
    main()
