"""LightZero configs: found by file, module or short name, and run unchanged, as `__main__`, with `train_*` replaced."""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import json
import re
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lzero_async.errors import ConfigError
from lzero_async.lightzero.entries import ENTRIES
from lzero_async.lightzero.options import IN_CONFIG
from lzero_async.lightzero.silence import quiet
from lzero_async.runs.options import closest

SUFFIX: Final = "_config"


@dataclass(frozen=True)
class Call:
    """A call of one of LightZero's `train_*` functions, or of ours of the same name, as a config makes it."""

    entry: str
    main: Any
    create: Any
    seed: int = 0
    model: Any = None
    model_path: str | None = None
    max_train_iter: int = int(1e10)
    max_env_step: int = int(1e10)
    options: Mapping[str, Any] = field(default_factory=dict)  # of ours, by name


def call_of(
    name: str,
    main: Any,
    create: Any,
    seed: int = 0,
    model: Any = None,
    model_path: str | None = None,
    max_train_iter: int | None = None,
    max_env_step: int | None = None,
    **options: Any,
) -> Call:
    """A call with these arguments of `train_*`; no limit is LightZero's own."""
    given = {"max_train_iter": max_train_iter, "max_env_step": max_env_step}
    limits = {key: int(value) for key, value in given.items() if value is not None}
    return Call(name, main, create, seed, model, model_path, options=options, **limits)


def installed_configs() -> dict[str, Path]:
    """The configs of the installed zoo by their short names: the file's name without `_config`."""
    if importlib.util.find_spec("lzero") is None:
        raise ConfigError("LightZero is not installed here; install the tested versions: lzero-async setup lightzero.")
    places = [Path(place) for place in importlib.import_module("zoo").__path__]
    files = sorted(file for place in places for file in place.glob("**/config/*.py") if "train_" in file.read_text())
    return {file.stem.removesuffix(SUFFIX): file for file in files}


def find_config(name: str) -> Path:
    """The file that CONFIG means: a file, a module, or the short name of a config in the installed zoo."""
    if name.endswith(".py") or "/" in name:
        if not Path(name).is_file():
            raise ConfigError(
                f"There is no file {name}; give a config's file, module or short name (--list shows them)."
            )
        return Path(name)
    known = installed_configs()
    if (short := name.removesuffix(SUFFIX)) in known:
        return known[short]
    if "." in name:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is not None and found.has_location and Path(str(found.origin)).is_file():
            return Path(str(found.origin))
    close = closest(short, known)
    hint = f"did you mean {close}?" if close else "--list shows those of the installed zoo."
    raise ConfigError(f"There is no config {name!r}; {hint}")


@contextlib.contextmanager
def replaced_entries(train: Callable[[Call], Any]) -> Iterator[None]:
    """While this lasts, every `train_*` of `lzero.entry` and of this package calls `train` instead."""
    with quiet():
        entries = importlib.import_module("lzero.entry")
    own = importlib.import_module("lzero_async.lightzero")
    places = [(module, name) for name in ENTRIES for module in (entries, sys.modules[f"lzero.entry.{name}"], own)]
    before = [getattr(module, name) for module, name in places]

    def stand_in(name: str) -> Callable[..., Any]:
        def called(input_cfg: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            return train(call_of(name, *copy.deepcopy(list(input_cfg)), *args, **kwargs))

        return called

    try:
        for module, name in places:
            setattr(module, name, stand_in(name))
        yield
    finally:
        for (module, name), function in zip(places, before, strict=True):
            setattr(module, name, function)


def run_config(file: Path, words: Sequence[str], train: Callable[[Call], Any]) -> int:
    """Run a config's file as `__main__` with these words behind its name; how often it called a `train_*`."""
    calls = 0

    def counted(call: Call) -> Any:
        nonlocal calls
        calls += 1
        return train(call)

    argv, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = [str(file), *words], [str(file.resolve().parent)]
    try:
        with replaced_entries(counted):
            runpy.run_path(str(file), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, path
    return calls


def change(config: Any, assignments: Sequence[str], known: Mapping[str, Any]) -> None:
    """Set values of a config by `section.key=value`; keys are checked against the compiled config `known`."""
    for words in assignments:
        path, equals, text = words.partition("=")
        keys = path.strip().split(".")
        if not equals or len(keys) < 2:
            raise ConfigError(f"--set is {words!r}; write it as --set policy.batch_size=64.")
        place, there = config, known
        for number, key in enumerate(keys):
            if keys[:-1] == ["policy"] and key in IN_CONFIG:
                raise ConfigError(f"{words!r} is no value of LightZero's; give it as --{key} {text.strip()}.")
            if not isinstance(there, Mapping) or key not in there:
                close = closest(key, there) if isinstance(there, Mapping) else ""
                hint = (
                    f"did you mean {'.'.join([*keys[:number], close])}?"
                    if close
                    else "total_config.py of a run lists them."
                )
                raise ConfigError(f"The config has no {'.'.join(keys[: number + 1])}; {hint}")
            there = there[key]
            if number < len(keys) - 1:
                if key not in place:
                    place[key] = type(config)()
                place = place[key]
        place[keys[-1]] = _value(words, text.strip(), there)


def _value(words: str, text: str, before: Any) -> Any:
    """What a text means; ConfigError for words where the config has a number or a truth."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    known = {"none": None, "true": True, "false": False}
    if text.lower() in known:
        return known[text.lower()]
    if isinstance(before, (bool, int, float)):
        try:
            return float(text)
        except ValueError:
            raise ConfigError(
                f"--set is {words!r}, but the config has {before!r} there; give a value like that."
            ) from None
    return text


def named_for_seed(exp_name: str, seed: int) -> str:
    """The name of an experiment that says its seed, for another seed."""
    return re.sub(r"seed\d+", f"seed{seed}", exp_name)
