"""Export formats, one per file. Listing their names imports none of them."""

from pathlib import Path


def format_names() -> list[str]:
    """Return the names by which `export --to` knows the formats."""
    return sorted(path.stem.replace("_", "-") for path in Path(__file__).parent.glob("[!_]*.py"))
