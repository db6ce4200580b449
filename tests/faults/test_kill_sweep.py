"""No kill while saving or rotating loses a run, or changes a bit of its end."""

import json
import subprocess
import sys
from pathlib import Path


def test_a_run_killed_at_any_change_on_the_disk_resumes_to_the_same_bits():
    script = Path(__file__).with_name("kill_sweep.py")
    done = subprocess.run([sys.executable, script, "--json"], capture_output=True, text=True, timeout=580)
    report = json.loads(done.stdout)
    changes = report["swept"]
    print(f"killed before {len(changes)} changes on the disk")
    kinds = {change.split()[0] for change in changes}
    assert kinds == {"create", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
    assert len(changes) >= 20
    assert "os.rename step-3" in changes, "the rotation is part of the sweep"
    assert report["different"] == []
    assert report["control"] == "the final weights or optimiser state differ"
    assert done.returncode == 0
