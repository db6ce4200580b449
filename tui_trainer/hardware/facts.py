"""The facts that a plan is made from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """One machine, as seen by this process. Bytes are bytes; None is "not reported"."""

    cpu_name: str
    usable_cores: int
    """Cores this process may use: affinity and container quota counted, hyper-threads not."""
    memory_bytes: int | None
    memory_available_bytes: int | None
    """What can be had without swapping, container limit counted."""
    platform: str
    python_version: str
