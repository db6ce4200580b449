"""What a bare GPU image lacks, in a folder of wheels that is carried there: `tests.gpu.day` installs from it.

    python -m tests.gpu.wheels FOLDER [--image torch==2.11,transformers==5.17,...] [--python 3.12] [--limit-mb 55]

The packages that the image has, with all that these require, are never fetched: name what yours has, with versions
where you know them. The others come in groups, the most needed first; a group that would pass the limit is left out,
and said. It needs pip (or uv, which brings pip) and a package index.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.parser import HeaderParser
from importlib.util import find_spec
from pathlib import Path

try:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
except ImportError:  # transformers requires it; pip carries its own
    from pip._vendor.packaging.requirements import Requirement
    from pip._vendor.packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
IMAGE = ("torch==2.11,transformers==5.17,peft,accelerate,pyarrow,scikit-learn,xxhash,"
         "pytest,pytest-timeout,pytest-xdist")  # fmt: skip
# Asked for one by one, after the rest of what the program requires: what the day measures goes without them.
_LATER = ("datasets", "scikit-learn")
_USED_WHERE_INSTALLED = ("liger-kernel", "bitsandbytes", "torchao")
# transformers is content with versions of these that are older than the ones that we require.
_MAYBE_OLDER = ("huggingface-hub", "typer")
# glibc 2.34 and older: that of Ubuntu 22.04 is 2.35.
_TAGS = [*(f"manylinux_2_{minor}" for minor in range(34, 4, -1)), "manylinux2014", "manylinux2010"]
_MB = 1_000_000


@dataclass(frozen=True)
class Candidate:
    """One version of a package, and what it requires."""

    version: str
    requires: Sequence[str] = ()


@dataclass(frozen=True)
class Group:
    """Packages that are taken together or not at all."""

    name: str
    requirements: Sequence[str]


@dataclass
class Closure:
    """`taken`: what is to be installed; `lacking`: requirements that neither the machine nor the candidates meet."""

    taken: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)


def closure(
    requirements: Iterable[str], candidates: Mapping[str, Candidate], have: Mapping[str, str], python: str
) -> Closure:
    """Which candidates to add to what a machine has, so that the requirements and those of all of these are met.

    Names are canonical. What is there and new enough is left alone, with all that it requires and with its extras:
    those of fsspec, which datasets asks for, are for a network.
    """
    found, waiting = Closure(), [(text, frozenset[str]()) for text in requirements]
    while waiting:
        text, extras = waiting.pop(0)
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if not _applies(requirement, extras, python):
            continue
        is_there = name in have and requirement.specifier.contains(have[name], prereleases=True)
        candidate = candidates.get(name)
        if is_there or (name in found.taken and not requirement.extras):
            continue
        if candidate is None or not requirement.specifier.contains(candidate.version, prereleases=True):
            found.lacking.append(text)
            continue
        if name not in found.taken:
            found.taken.append(name)
        waiting += [(more, frozenset(requirement.extras)) for more in candidate.requires]
    return found


def _applies(requirement: Requirement, extras: frozenset[str], python: str) -> bool:
    if requirement.marker is None:
        return True
    here = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux",
            "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"}  # fmt: skip
    return any(requirement.marker.evaluate({**here, "extra": extra}) for extra in (extras or {""}))


def our_groups() -> list[Group]:
    """What this repository requires, the most needed first, as pyproject.toml has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    ours = {canonicalize_name(Requirement(text).name): text for text in project["project"]["dependencies"]}
    extras = project["project"].get("optional-dependencies", {}).get("gpu", [])
    gpu = {canonicalize_name(Requirement(text).name): text for text in extras}
    tests = [text for text in project["dependency-groups"]["dev"] if text.startswith("pytest")]
    needed = [text for name, text in ours.items() if name not in _LATER]
    alone = [*(gpu.get(name, name) for name in _USED_WHERE_INSTALLED), *(ours[name] for name in _LATER)]
    groups = [Group("what runs need", needed), Group("tests", tests)]
    return groups + [Group(str(canonicalize_name(Requirement(text).name)), [text]) for text in alone]


def selection(
    groups: Sequence[Group], image: Sequence[str], candidates: Mapping[str, Candidate], python: str
) -> list[tuple[str, list[str]]]:
    """The names to fetch for each group, without those of the groups before and without the image's own.

    `image` are requirements such as `torch==2.11`; with what they require they are taken to be there, in versions that
    are unknown where the image does not name them.
    """
    named = {canonicalize_name(Requirement(text).name) for text in image}
    there = {name: candidates[name].version for name in closure(image, candidates, {}, python).taken}
    have, found = dict(there), []
    for group in groups:
        taken = closure(group.requirements, candidates, have, python).taken
        have |= {name: candidates[name].version for name in taken}
        found.append((group.name, taken))
    # What only a requirement of a requirement brings: other versions of these may not ask for it.
    required = [Requirement(text) for name in named for text in candidates[name].requires]
    direct = {canonicalize_name(one.name) for one in required if _applies(one, frozenset(), python)}
    sure = {name: version for name, version in there.items() if name in named | direct}
    reached = closure(groups[0].requirements, candidates, sure, python).taken
    indirect = [name for name in reached if name in there]
    older = [name for name in _MAYBE_OLDER if name in there and name not in named and name not in indirect]
    return [*found, ("what a leaner image lacks", indirect), ("what an older image lacks", older)]


def fitting(
    groups: Sequence[tuple[str, list[str]]], sizes: Mapping[str, int], limit_bytes: int
) -> tuple[list[str], list[str]]:
    """(names that fit together, what was left out and why, in words)."""
    chosen: list[str] = []
    left_out, total = [], 0
    for group, names in groups:
        more = sum(sizes[name] for name in names)
        if total + more > limit_bytes:
            words = f"{group}: {more / _MB:.1f} MB more, {(limit_bytes - total) / _MB:.1f} MB are left"
            left_out.append(words)
            continue
        chosen += names
        total += more
    return chosen, left_out


def wheels_in(folder: Path) -> dict[str, tuple[Path, Candidate]]:
    """The wheels of a folder by canonical name, as their METADATA describes them."""
    found = {}
    for path in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(path) as archive:
            name = next(x for x in archive.namelist() if x.endswith(".dist-info/METADATA"))
            fields = HeaderParser().parsestr(archive.read(name).decode("utf-8", "replace"))
        candidate = Candidate(fields["Version"], tuple(fields.get_all("Requires-Dist") or ()))
        found[str(canonicalize_name(fields["Name"]))] = (path, candidate)
    return found


def resolve(requirements: Sequence[str], python: str, versions: Mapping[str, str]) -> dict[str, Candidate]:
    """What pip would install for them, all together, on a bare machine; nothing but metadata is fetched. `versions`
    are given for some packages."""
    with tempfile.TemporaryDirectory() as place:
        report, constraints = Path(place, "report.json"), Path(place, "constraints.txt")
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()), encoding="utf-8")
        _pip("install", "--dry-run", "--ignore-installed", "--target", place, "--report", str(report),
             "--constraint", str(constraints), *_of(python), *requirements)  # fmt: skip
        rows = [row["metadata"] for row in json.loads(report.read_text(encoding="utf-8"))["install"]]
    return {
        str(canonicalize_name(row["name"])): Candidate(row["version"], tuple(row.get("requires_dist", ())))
        for row in rows
    }


def _of(python: str) -> list[str]:
    return ["--only-binary", ":all:", "--python-version", python,
            *(word for tag in _TAGS for word in ("--platform", f"{tag}_x86_64"))]  # fmt: skip


def _pip(*arguments: str) -> None:
    """Raises SystemExit with pip's last words."""
    here = [sys.executable, "-m", "pip"] if find_spec("pip") else ["uv", "tool", "run", "pip"]
    done = subprocess.run([*here, arguments[0], "-q", *arguments[1:]], capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
        sys.exit("\n".join([f"pip {arguments[0]} failed:", *said[-20:]]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--image", default=IMAGE, help="packages of the image, with their versions")
    parser.add_argument("--python", default="3.12", help="the image's Python")
    parser.add_argument("--limit-mb", type=float, default=55.0)
    chosen = parser.parse_args(arguments)
    image = [text if "==" not in text or text.endswith("*") else f"{text}.*" for text in chosen.image.split(",")]
    groups = our_groups()
    wanted = [text for group in groups for text in group.requirements]
    there = resolve(image, chosen.python, {})
    versions = {name: candidate.version for name, candidate in there.items()}
    candidates = resolve([*image, *wanted], chosen.python, versions)
    selected = selection(groups, image, candidates, chosen.python)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        exact = [f"{name}=={candidates[name].version}" for _, names in selected for name in names]
        _pip("download", "--no-deps", "--dest", place, *_of(chosen.python), *exact)
        paths = {name: path for name, (path, _) in wheels_in(Path(place)).items()}
        sizes = {name: path.stat().st_size for name, path in paths.items()}
        names, left_out = fitting(selected, sizes, int(chosen.limit_mb * _MB))
        for old in chosen.folder.glob("*.whl"):
            old.unlink()
        for name in names:
            shutil.copy(paths[name], chosen.folder)
    total = sum(path.stat().st_size for path in chosen.folder.glob("*.whl"))
    print(f"{len(names)} wheels of {total / _MB:.1f} MB for Python {chosen.python} beside {chosen.image}")
    for words in left_out:
        print(f"left out  {words}")


if __name__ == "__main__":
    main()
