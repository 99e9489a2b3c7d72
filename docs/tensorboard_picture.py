"""Photograph TensorBoard's CUSTOM SCALARS page of a run: `python docs/tensorboard_picture.py RUN [PICTURE]`. Needs Chromium."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
PATIENCE = 120.0  # seconds for TensorBoard to read the run


def main(arguments: list[str]) -> int:
    """Start TensorBoard on a free port of this machine, wait until it knows the layout, and take the picture."""
    run, more = Path(arguments[0]).resolve(), arguments[1:]
    picture = Path(more[0]) if more else HERE / "seen-tensorboard.png"
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("error: no chromium and no google-chrome on this machine; install one of them.", file=sys.stderr)
        return 2
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", run.name, "--host", "127.0.0.1"]
    port = ["--port", address.rsplit(":", 1)[1]]
    board = subprocess.Popen([*command, *port], cwd=run.parent, stderr=subprocess.DEVNULL)
    try:
        wait_for_layout(address, board)
        take(browser, f"{address}/#custom_scalars", picture)
    finally:
        board.terminate()
        board.wait()
    print(picture)
    return 0


def wait_for_layout(address: str, board: subprocess.Popen[bytes]) -> None:
    """Until the page has something to show; TensorBoard reads a run some time after it began to answer."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and board.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/data/plugin/custom_scalars/layout", timeout=10) as answer:
                if json.loads(answer.read()):
                    return
        except OSError:
            pass  # it does not listen yet
        time.sleep(0.5)
    raise SystemExit(f"error: TensorBoard shows no layout within {PATIENCE:g} s; start it by hand to see why.")


def take(browser: str, page: str, picture: Path) -> None:
    """A picture of the page as it is 40 seconds of its own time after it was opened."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1500,1300"]
    subprocess.run(
        [browser, *options, "--virtual-time-budget=40000", f"--screenshot={picture.resolve()}", page],
        check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=PATIENCE,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
