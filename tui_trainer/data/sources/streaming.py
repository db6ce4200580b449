"""Data sets of the hub that are read from there: nothing but what is made of the rows is kept on this disk.

The commit is asked for once in a process, and its files are read by ranges, through huggingface_hub's file system. What
a file holds is told by the hub's own hash, so that prepared data is found again.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tui_trainer.data.sources.declared_splits import README, configured_splits, has_configurations
from tui_trainer.data.sources.hub import HubPath, chosen_names, no_such_part
from tui_trainer.data.sources.named_splits import NamedSplits
from tui_trainer.data.sources.source_file import SourceFile
from tui_trainer.errors import DataError
from tui_trainer.hub_layout import network_errors, network_reason
from tui_trainer.safe_text import one_line


@cache
def remote_files(wanted: HubPath) -> tuple[dict[str, SourceFile], str]:
    """All files of the commit by their names, and what its README.md says.

    Raises DataError where the hub has no such data set, and where it cannot be reached.
    """
    from huggingface_hub import HfApi, HfFileSystem, errors

    try:
        info = HfApi(library_name="tui-trainer").dataset_info(
            wanted.name, revision=wanted.revision, files_metadata=True
        )
        place = f"hf://datasets/{wanted.name}@{info.sha}"
        files = {
            file.rfilename: SourceFile(
                path=Path(place, file.rfilename),
                label=one_line(f"{wanted.name}/{file.rfilename}"),
                size_bytes=file.size or 0,
                remote=f"{place}/{file.rfilename}",
                digest=(file.lfs.sha256 if file.lfs else file.blob_id) or f"{info.sha}",
            )
            for file in info.siblings or ()
        }
        readme = HfFileSystem().read_text(files[README].remote, encoding="utf-8") if README in files else ""
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        what = f"the hub has no data set {wanted.name} at {one_line(wanted.revision, 80)} that this account may see"
        raise DataError(what, hint="look for a misspelling; a private or gated one needs `hf auth login`") from None
    except network_errors() as error:
        hint = "data.streaming reads it from the hub; download it where there is a network, and set it to false"
        raise DataError(f"the data set {wanted.name} cannot be streamed: {network_reason(error)}", hint=hint) from None
    return files, readme


def remote_splits(wanted: HubPath, name: str) -> tuple[dict[str, SourceFile], NamedSplits | None]:
    """The data that is wanted, by its names; and its splits where the README.md declares them for a configuration."""
    files, readme = remote_files(HubPath(wanted.name, wanted.revision))
    if not wanted.inside:
        # Which file is of which split is a matter of names alone, and `datasets` looks for them in a folder.
        with TemporaryDirectory() as place:
            folder = Path(place)
            (folder / README).write_text(readme, encoding="utf-8")
            if has_configurations(folder):
                for file in chosen_names([*files], ""):
                    (folder / file).parent.mkdir(parents=True, exist_ok=True)
                    (folder / file).touch()
                splits, declared = configured_splits(folder, name, one_line(str(wanted), 120))
                return {file: replace(found, **declared) for file, found in files.items()}, splits
    names = chosen_names([*files], wanted.inside)
    if not names:
        raise no_such_part(wanted, files)
    return {file: files[file] for file in names}, None
