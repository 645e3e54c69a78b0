"""Runs what a new user runs first, from a wheel and away from the source: rules, demo, train, evaluate, resume, predict.

python -m pip wheel --no-deps -w dist .
python scripts/check_wheel.py dist/*.whl                       # unpacked, in this Python with its own dependencies
python scripts/check_wheel.py dist/*.whl --wheels FOLDER       # ... and with the wheels of a folder, unpacked too
python scripts/check_wheel.py                                  # the package as it is installed in this Python
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PREDICT = """
import sys
import gymnasium as gym
from disco_torch import load_run
run = load_run(sys.argv[1], checkpoint=sys.argv[2])
observation, _ = gym.make("CartPole-v1").reset(seed=0)
assert run.action_space.contains(run.predict(observation)), "an action of the environment's own space"
"""
WHERE = "import disco_torch, pathlib; print(pathlib.Path(disco_torch.__file__).resolve().parents[1])"


def unpack(wheels: list[Path], folder: Path) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", nargs="*", type=Path, help="wheel of this package; the installed one if not given")
    parser.add_argument("--wheels", type=Path, help="folder with wheels of dependencies that this Python lacks")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        here, packages = Path(temporary) / "away", Path(temporary) / "packages"
        here.mkdir()
        packages.mkdir()
        unpack([*args.wheel, *(sorted(args.wheels.glob("*.whl")) if args.wheels else [])], packages)
        environment = {**os.environ, "PYTHONPATH": str(packages), "DISCO_TORCH_CACHE": str(here / "cache")}

        def run(*command: str) -> str:
            print("$", *command[:1] if command[0] == "-c" else command, flush=True)
            done = subprocess.run([sys.executable, *command], cwd=here, env=environment, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"status {done.returncode}\n{done.stdout}\n{done.stderr}")
            return done.stdout

        where = Path(run("-c", WHERE).strip())
        source = Path(__file__).resolve().parents[1]
        assert where != source and (not args.wheel or where == packages.resolve()), f"imported from {where}"
        command = ("-m", "disco_torch")
        assert "birch" in run(*command, "rules") and "parameters in total" in run(*command, "rules", "birch")
        assert "balls caught" in run(*command, "demo", "--steps", "4096")
        cartpole = ("--env", "CartPole-v1", "--name", "first", "--eval-every", "1024")
        assert "best evaluation" in run(*command, "train", *cartpole, "--steps", "2048")
        folder = "runs/first"
        assert "greedy" in run(*command, "evaluate", folder, "--episodes", "5")
        assert "done" in run(*command, "train", "--resume", folder, "--steps", "3072")
        assert "1 run in" in run(*command, "plot", folder)
        for checkpoint in ("newest", "best"):
            run("-c", PREDICT, folder, checkpoint)
        print(f"ok: Python {sys.version.split()[0]}, package from {where}")


if __name__ == "__main__":
    main()
