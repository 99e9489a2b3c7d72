"""`lzero-async lightzero --list`: the configs of the installed zoo, with policy, environment and whether they run here."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from typing import Any, Final, NamedTuple

from lzero_async.lightzero.configs import Call, installed_configs, run_config
from lzero_async.lightzero.silence import quiet
from lzero_async.lightzero.upstream import fault

RUNS: Final = "runs"
NEEDS: Final = "needs"
BROKEN: Final = "broken upstream"
PACKAGES: Final = {"cv2": "opencv-python-headless", "ale_py": "ale-py", "PIL": "pillow"}


class Row(NamedTuple):
    """One config of the zoo."""

    name: str
    entry: str
    policy: str
    environment: str
    status: str


class _Captured(BaseException):
    """Ends a config at its first train call."""

    def __init__(self, call: Call) -> None:
        self.call = call


def captured(file: Any, words: tuple[str, ...] = ()) -> Call | Exception:
    """The first train call of a config, or why there is none."""

    def end(call: Call) -> None:
        raise _Captured(call)

    try:
        with quiet():
            run_config(file, words, end)
    except _Captured as found:
        return found.call
    except (Exception, SystemExit) as error:
        return error if isinstance(error, Exception) else RuntimeError("its command line ended it")
    return RuntimeError("it calls no train function")


def rows() -> list[Row]:
    """A row for every config of the installed zoo."""
    return [_row(name, captured(file)) for name, file in installed_configs().items()]


def _row(name: str, call: Call | Exception) -> Row:
    if isinstance(call, Exception):
        return Row(name, "", "", "", why(call))
    env = call.main.env
    environment = str(env.get("env_id") or env.get("env_name") or call.create.env.type)
    return Row(name, call.entry, str(call.create.policy.type), environment, _status(call))


def _status(call: Call) -> str:
    if found := fault(call):
        return f"{BROKEN}: {found}"
    try:
        with quiet():
            _try_environment(call)
    except Exception as error:
        return why(error)
    return RUNS


def _try_environment(call: Call) -> None:
    """Make one environment and reset it."""
    from ding.envs import get_vec_env_setting
    from easydict import EasyDict

    for part in call.create.values():
        for module in part.get("import_names", ()):
            importlib.import_module(module)
    config = EasyDict({**call.main.env, **call.create.env})
    if "env_id" in config and call.entry == "train_muzero_with_gym_env":
        importlib.import_module("gymnasium").make(config.env_id).close()
        return
    env_fn = importlib.import_module("ding.envs").get_env_cls(config)
    merged = EasyDict(env_fn.default_config()) if hasattr(env_fn, "default_config") else EasyDict()
    merged.update(config)
    env_fn, configs, _ = get_vec_env_setting(merged)
    with contextlib.closing(env_fn(configs[0])) as env:
        env.seed(0)
        env.reset()


def why(error: Exception) -> str:
    """What a failure says of a config, in a few words."""
    text = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and error.name:
        missing = error.name
        if missing.split(".")[0] in ("zoo", "lzero"):
            return f"{BROKEN}: the wheel has no {missing}"
        return f"{NEEDS} {PACKAGES.get(missing.split('.')[0], missing)}"
    if found := re.match(r"cannot import name '(\w+)' from '([\w.]+)'", text):
        return f"{BROKEN}: it imports {found[1]}, which {found[2]} does not have"
    if "indicate rank" in text or "MASTER_ADDR" in text:
        return f"{NEEDS} several ranks (torchrun)"
    if "CUDA" in text or "nvidia" in text.lower() or "_cuda_setDevice" in text:
        return f"{NEEDS} a GPU"
    if found := re.search(r"(?i)\b(box2d|pygame|mujoco|pycolab)\b", text):
        return f"{NEEDS} {found[1]}"
    if isinstance(error, AttributeError) and "'collections'" in text:
        return f"{NEEDS} a pycolab for Python 3.10 or newer"
    if "ROM" in text or "rom" in text.split():
        return f"{NEEDS} the game's ROM (ale-py)"
    return f"{BROKEN}: {type(error).__name__}: {text[:80]}"


def show() -> int:
    """Print the table."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    found = [Row("config", "entry", "policy", "environment", "here"), *rows()]
    widths = [max(map(len, column)) for column in zip(*found, strict=True)]
    for row in found:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    running = [row.name for row in found if row.status == RUNS]
    print(f"\n{len(running)} of {len(found) - 1} run here: lzero-async lightzero {(*running, 'CONFIG')[0]}")
    return 0
