"""What the kernel has noted of NVIDIA cards (Xid): a card that fell off the bus, memory that is worn out.

Source: NVIDIA's "Xid Errors" guide; the kernel's Documentation/ABI/testing/dev-kmsg.
"""

import os
from contextlib import suppress
from pathlib import Path

_MOST_REPORTS = 5
_RECORD_BYTES = 8192


def gpu_reports(log: Path = Path("/dev/kmsg")) -> list[str]:
    """The newest lines about cards since the machine was started; none where this user may not read them."""
    found: list[str] = []
    with suppress(OSError):
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while record := os.read(descriptor, _RECORD_BYTES):
                lines = record.decode(errors="replace").splitlines()
                found += [line.partition(";")[2] or line for line in lines if "NVRM: Xid" in line]
        except BlockingIOError:
            pass  # all of it was read
        finally:
            os.close(descriptor)
    return found[-_MOST_REPORTS:]
