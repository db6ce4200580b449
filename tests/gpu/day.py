"""A day with a GPU in five calls of at most ten minutes: everything that needs a card, the most valuable first.

    python -m tests.gpu.day --call N [--folder gpu-day]     what to carry to a server for call N, and the command there
    python -m tests.gpu.day --run N|all [--carried gpu-day] [--out gpu-day] [--work FOLDER] [--minutes M] [--dry]

For a machine with one NVIDIA GPU, no network and a bare image: Python 3.11 or newer, torch 2.11, transformers 5.17 or
newer. What is missing comes from FOLDER/wheels (`python -m tests.gpu.wheels` fills it) and goes into the work folder;
the image stays as it is. `tests/gpu/experiments.py` has the experiments, `keeper.py` gives each a process of its own
and 120 seconds, and every line of OUT/results.jsonl is there as soon as it is known. A call goes on where the results
that were carried end: first what was never tried, then what a call cut short, last what failed in an earlier one.
Models, packages and runs are in the work folder, which a later call on the same machine finds again.

--dry runs one experiment of each kind at tiny sizes on the CPU: exit code 1 when one of them is not done.
`python -m tests.gpu.report OUT` makes the table.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

from tests.gpu.experiments import CALL_MINUTES, CALLS, EXPERIMENTS, MOST_FILE_BYTES, MOST_FILES, ROOT
from tests.gpu.results import FILE, Results, append, now, read
from tui_trainer.hardware.libraries import read_versions

MOST_CARRIED_BYTES = 64 * 2**20
LIMIT_SECONDS, _LEAST_SECONDS, _REST_SECONDS = 120.0, 15.0, 5.0
_DRY_LIMIT_SECONDS = 600.0  # a machine of two cores that does much else
_TOLD_CHARACTERS = 200
# Tried in this order; those that are done are not. The reason of what is skipped may be gone: more was carried.
_ORDER = {"": 0, "started": 1, "interrupted": 1, "skipped": 2, "failed": 2, "timeout": 2}
_CARD_FIELDS = ("name", "memory.total", "driver_version", "compute_cap", "power.limit")
_MB = 1_000_000


def machine_facts(*, dry: bool) -> dict[str, Any]:
    """The card as `nvidia-smi` has it, and what it is in."""
    facts: dict[str, Any] = {"dry": dry, "date": datetime.now(UTC).date().isoformat(), "card": None if dry else card()}
    return facts | {"python": platform.python_version(), "cores": os.cpu_count()}


def card() -> dict[str, str] | None:
    """The first card, by the names of nvidia-smi; None where there is no such program, or no card."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, f"--query-gpu={','.join(_CARD_FIELDS)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
    rows = done.stdout.strip().splitlines()
    if done.returncode or not rows:
        return None
    return dict(zip(_CARD_FIELDS, (value.strip() for value in rows[0].split(",")), strict=False))


def install(wheels: Path, target: Path) -> dict[str, Any]:
    """Bring what this machine lacks from the wheels into `target`; says what was lacking, and what still is."""
    from tests.gpu.wheels import canonicalize_name, closure, our_groups, wheels_in

    offered = wheels_in(wheels)
    candidates = {name: candidate for name, (_, candidate) in offered.items()}
    places = [str(path) for path in (target, *filter(None, sys.path))]
    # The first of a name is the one that is imported.
    rows = reversed(list(metadata.distributions(path=places)))
    have = {str(canonicalize_name(row.name)): row.version for row in rows if row.name}
    python = ".".join(platform.python_version_tuple()[:2])
    taken: list[str] = []
    lacking: dict[str, list[str]] = {}
    for group in our_groups():
        found = closure(group.requirements, candidates, have, python)
        if found.lacking:
            lacking[group.name] = found.lacking
        if not found.lacking or group.name == "what runs need":
            taken += found.taken
            have |= {name: candidates[name].version for name in found.taken}
    if taken:
        if not find_spec("pip"):
            sys.exit("pip is missing here, and these are to be installed: " + ", ".join(taken))
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile",
                   "--target", str(target), *(str(offered[name][0]) for name in taken)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"pip could not install the wheels:\n{done.stderr[-3000:]}")
    return {"installed": {name: candidates[name].version for name in taken}, "lacking": lacking}


def environment(work: Path, packages: Path, *, dry: bool) -> dict[str, str]:
    """An experiment finds the wheels' packages and this checkout, no network, and a state folder of its own."""
    paths = [str(packages), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TUI_TRAINER_HOME": str(work / "home"),
        "XDG_CONFIG_HOME": str(work / "config"),
        **({"CUDA_VISIBLE_DEVICES": ""} if dry else {}),
    }


def waiting(results: Results, last_call: int, *, dry: bool = False) -> list[str]:
    """Names of the experiments of the calls up to this one that are not done, in the order to try them."""
    state = {name: outcome.state for name, outcome in results.experiments.items()}
    meant = [name for name, one in EXPERIMENTS.items() if one.call <= last_call and (one.is_dry or not dry)]
    names = [name for name in meant if state.get(name) != "done"]
    return sorted(names, key=lambda name: _ORDER.get(state.get(name, ""), 0))


def bring(carried: Path, out: Path) -> None:
    """Results that were carried go on in `out`; those that are there already may be of the same call, and longer."""
    source, target = carried / FILE, out / FILE
    out.mkdir(parents=True, exist_ok=True)
    here = target.stat().st_size if target.exists() else 0
    if source.exists() and source.stat().st_size > here:
        shutil.copy(source, target)


def sizes_to_carry(folder: Path) -> dict[str, int]:
    """Bytes of this checkout (what git tracks, and what it neither tracks nor ignores), wheels and results."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    ours = [ROOT / name for name in listed.stdout.split("\0") if name]
    return {
        "this checkout": sum(path.stat().st_size for path in ours if path.is_file()),
        str(folder / "wheels"): sum(path.stat().st_size for path in (folder / "wheels").glob("*.whl")),
        str(folder / FILE): (folder / FILE).stat().st_size if (folder / FILE).exists() else 0,
    }


def describe(call: int, folder: Path) -> int:
    """Print what to carry for a call, its command and what it will do. Exit code 1: it is too much to carry."""
    sizes, results = sizes_to_carry(folder), read(folder / FILE)
    together = sum(sizes.values())
    print(f"call {call} of {len(CALLS)}: {CALLS[call]}")
    for name, size in {**sizes, "together": together, "at most": MOST_CARRIED_BYTES}.items():
        print(f"{'carry' if name == 'this checkout' else '':8}{name:<30}{size / _MB:8.1f} MB")
    if not sizes[str(folder / "wheels")]:
        print(f"        no wheels: python -m tests.gpu.wheels {folder / 'wheels'}")
    # Longer than the call takes by itself: it writes down what it had to stop.
    print(f"run     timeout -s TERM {CALL_MINUTES[call] * 60 + 20:.0f} python3 -m tests.gpu.day --run {call} "
          f"--carried {folder} --out RESULTS")  # fmt: skip
    print(f"back    into {folder}: at most {MOST_FILES} files of {MOST_FILE_BYTES / _MB:.1f} MB in RESULTS")
    names = waiting(results, call)
    states = [(name, results.experiments[name].state if name in results.experiments else "") for name in names]
    for title, chosen in (("to do", [name for name, state in states if not _ORDER.get(state)]),
                          ("again", [f"{name} ({state})" for name, state in states if _ORDER.get(state)])):  # fmt: skip
        for name in chosen:
            print(f"{title:<8}{name}")
    return int(together > MOST_CARRIED_BYTES)


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--call", type=int, choices=CALLS, help="print what to carry and to type")
    what.add_argument("--run", choices=[*map(str, CALLS), "all"], help="carry a call out, or all of them in one")
    parser.add_argument("--carried", "--folder", type=Path, default=Path("gpu-day"), help="wheels and earlier results")
    parser.add_argument("--out", type=Path, help="the folder of the results; by default what is carried")
    parser.add_argument("--work", type=Path, help="for models, packages and runs: up to 60 GB")
    parser.add_argument("--minutes", type=float, help="for everything; by default those of the call")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    started, chosen = monotonic(), options(arguments)
    if chosen.call:
        return describe(chosen.call, chosen.carried)
    last = max(CALLS) if chosen.run == "all" else int(chosen.run)
    minutes = chosen.minutes or (sum(CALL_MINUTES.values()) if chosen.run == "all" else CALL_MINUTES[last])
    out = (chosen.out or chosen.carried).resolve()
    name = "tui-trainer-gpu-day-dry" if chosen.dry else "tui-trainer-gpu-day"
    work = (chosen.work or Path(tempfile.gettempdir(), name)).resolve()
    facts = machine_facts(dry=chosen.dry)
    if not chosen.dry and facts["card"] is None:
        print("nvidia-smi shows no card here; --dry runs everything at tiny sizes on the CPU", file=sys.stderr)
        return 2
    bring(chosen.carried.resolve(), out)
    if any(machine.get("dry") != chosen.dry for machine in read(out / FILE).machines):
        kind = "a card" if chosen.dry else "a dry run"
        print(f"the results in {out} are of {kind}: name another folder with --out", file=sys.stderr)
        return 2
    packages = work / "packages"
    facts |= install(chosen.carried / "wheels", packages)
    sys.path.insert(0, str(packages))
    facts["libraries"] = read_versions()
    append(out / FILE, {"call": chosen.run, "at": now(), "machine": facts})
    for library, version in facts["installed"].items():
        print(f"installed {library} {version} from the wheels: it was not here, or too old")
    for group, lacking in facts["lacking"].items():
        print(f"lacking for {group}: {', '.join(lacking)}")
    stop = Event()
    # However often it is pressed: what was started is ended, and has its line.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: stop.set())
    return _carry_out(waiting(read(out / FILE), last, dry=chosen.dry), out, work, started + 60 * minutes, stop,
                      dry=chosen.dry)  # fmt: skip


def _carry_out(names: Sequence[str], out: Path, work: Path, deadline: float, stop: Event, *, dry: bool) -> int:
    """Exit code 0: all of them are done or have nothing to measure here; 1: not; 130: stopped."""
    from tests.gpu.keeper import adopt_orphans, end_descendants

    adopt_orphans()
    may_take = _DRY_LIMIT_SECONDS if dry else LIMIT_SECONDS
    for name in names:
        left = deadline - monotonic() - _REST_SECONDS
        if stop.is_set() or left < _LEAST_SECONDS:
            break
        experiment = EXPERIMENTS[name]
        if missing := [module for module in experiment.requires if not find_spec(module)]:
            append(out / FILE, {"name": name, "state": "skipped", "reason": f"{missing[0]} is not installed"})
        else:
            print(f"{name}: at most {min(left, may_take):.0f} s", flush=True)
            append(out / FILE, {"name": name, "state": "started", "at": now()})
            # Where less is left than an experiment may take, it is cut short, and has not failed.
            command = [sys.executable, "-m", "tests.gpu.keeper", name, "--results", out / FILE, "--work", work / "run",
                       "--limit", str(min(left, may_take)), "--may-take", str(may_take),
                       "--parent", str(os.getpid()), "--", *command_of(name, out / FILE, work, dry=dry)]  # fmt: skip
            env = environment(work / "run", work / "packages", dry=dry)
            with subprocess.Popen(command, cwd=ROOT, start_new_session=True, env=env) as keeper:
                while keeper.poll() is None and not stop.wait(0.1):
                    pass
                if stop.is_set():
                    keeper.terminate()
            if read(out / FILE).experiments[name].state == "started":
                end_descendants()
                reason = f"its keeper ended with {keeper.returncode}"
                append(out / FILE, {"name": name, "state": "interrupted", "reason": reason})
        print(words_of(name, read(out / FILE)), flush=True)
    if stop.is_set():
        print("stopped; the same command goes on with what is not done")
        return 130
    found = read(out / FILE).experiments
    missing = [name for name in names if name not in found or found[name].state not in ("done", "skipped")]
    print(f"results are in {out / FILE}; `python -m tests.gpu.report {out}` makes the table")
    if missing:
        print(f"not done: {', '.join(missing)}")
    return int(bool(missing))


def command_of(name: str, results: Path, work: Path, *, dry: bool) -> list[str]:
    return [sys.executable, "-m", "tests.gpu.experiments", name, "--results", str(results), "--work", str(work / "run"),
            "--models", str(work / "models"), *(["--dry"] if dry else [])]  # fmt: skip


def words_of(name: str, results: Results) -> str:
    outcome = results.experiments[name]
    words = f"{name}: {outcome.state} in {outcome.seconds:.0f} s" + (f", {outcome.reason}" if outcome.reason else "")
    return "\n".join([words, *(f"  | {row[:_TOLD_CHARACTERS]}" for row in outcome.error[-3:])])


if __name__ == "__main__":
    sys.exit(main())
