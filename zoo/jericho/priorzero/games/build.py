"""Compile the shipped game with Inform 6 and check that the story file is the frozen one, byte for byte.

python build.py              (make game; Debian: apt install inform6-compiler inform6-library)
python build.py --accept     keep the new file although it differs, and write its md5 into bindings.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY = "/usr/share/inform6/library"


def main() -> int:
    """Build; 0 if the file is the frozen one, 1 if it differs, 2 if it cannot be built."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--library", default=os.environ.get("INFORM6_LIBRARY", LIBRARY), help="folder of the Inform library"
    )
    parser.add_argument("--accept", action="store_true", help="replace the story file although it differs")
    options = parser.parse_args()
    compiler = shutil.which("inform6") or shutil.which("inform")
    if compiler is None or not Path(options.library).is_dir():
        print("error: the Inform 6 compiler or its library is missing; on Debian install inform6-compiler and "
              "inform6-library, or give --library its folder.", file=sys.stderr)  # fmt: skip
        return 2
    bindings = json.loads((HERE / "bindings.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        story = Path(folder) / bindings["rom"]
        command = [compiler, "-v5", f"+include_path={options.library}", str(HERE / "gannet.inf"), str(story)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode or not story.is_file():
            print(f"error: the game does not compile:\n{done.stdout}{done.stderr}", file=sys.stderr)
            return 2
        md5 = hashlib.md5(story.read_bytes()).hexdigest()
        if md5 == bindings["md5"]:
            print(f"{bindings['rom']}: {md5}, as frozen")
            return 0
        if not options.accept:
            print(f"error: the new {bindings['rom']} has md5 {md5}, and the frozen one has {bindings['md5']}: the source, the "
                  "compiler or its library differs. Results of the two do not compare; --accept keeps the new one.",
                  file=sys.stderr)  # fmt: skip
            return 1
        shutil.copyfile(story, HERE / bindings["rom"])
        (HERE / "bindings.json").write_text(json.dumps({**bindings, "md5": md5}, indent=2) + "\n")
        print(f"{bindings['rom']}: {md5}, new")
    return 0


if __name__ == "__main__":
    sys.exit(main())
