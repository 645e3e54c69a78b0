"""Memory of a long run: trains for some minutes and prints the resident memory over time.

python benchmarks/memory.py --minutes 10
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def resident_mib(pid: int) -> float:
    """Resident memory of a process, Linux."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def main(minutes: float, options: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "disco_torch", "train", "--runs", folder, "--steps", str(10**9), *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            start = time.monotonic()
            samples: list[float] = []
            while (elapsed := time.monotonic() - start) < 60 * minutes:
                time.sleep(min(15.0, 60 * minutes - elapsed))
                samples.append(resident_mib(process.pid))
                print(f"{(time.monotonic() - start) / 60:5.1f} min  {samples[-1]:8.1f} MiB", flush=True)
        finally:
            process.terminate()
            process.wait(timeout=60)
    half = len(samples) // 2
    growth = max(samples[half:]) - max(samples[:half])
    print(f"largest in the second half minus largest in the first: {growth:+.1f} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    known, rest = parser.parse_known_args()
    main(known.minutes, rest or ["--preset", "catch-actor-critic", "--checkpoint-every", "100"])
