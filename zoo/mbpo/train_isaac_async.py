"""Train MBPO on environments that are vectorised on one device, in the manner of Isaac Lab: tensors in, tensors out.

    python zoo/mbpo/train_isaac_async.py --task tensor-pendulum                       our own, needs no simulator
    python zoo/mbpo/train_isaac_async.py --task Isaac-Cartpole-Direct-v0 --num_envs 1024 --headless --device cuda:0
    python zoo/mbpo/train_isaac_async.py --task my_package.my_envs:make --num_envs 256

`module:function` is called with num_envs and device and returns such an environment (its contract: TensorVecEnv in
tensor_envs.py). The collector has its simulator in the main thread of a process of its own, as Isaac Lab wants it, and what
it collects passes through the host's memory once; with --backend thread everything stays on the device. One simulator runs at
a time in a process, so Isaac Lab's tasks are not evaluated apart: the returns of the collected episodes are shown.
Isaac Lab itself was not run by this project; the contract is tested on tensor-pendulum. All other options are those of train.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lzero_async.errors import ConfigError
from lzero_async.runs.options import device_of
from lzero_async.runs.run_dir import exit_code
from zoo.mbpo.envs.sources import TensorSource
from zoo.mbpo.train import make_parser, parse_arguments, train

OWN = "tensor-pendulum"
PENDULUM = "zoo.mbpo.envs.tensor_pendulum:TensorPendulum"
ISAAC = "zoo.mbpo.envs.isaac:make_env"


def make_source(options: Any, headless: bool) -> TensorSource:
    """Where the environments of `--task` come from; ConfigError for options that they do not know."""
    if options.env_args and ":" not in options.env:
        raise ConfigError(
            f"env_args is {options.env_args!r}, but {options.env} takes none; write a function of your own that makes the "
            "environment, and name it with --task module:function."
        )
    if options.step_seconds:
        raise ConfigError(f"step_seconds is {options.step_seconds!r}, but only the environments of train.py can wait.")
    device = device_of(options)
    if options.env == OWN:
        return TensorSource(options, PENDULUM, {"device": device})
    if ":" in options.env:
        return TensorSource(options, options.env, {"device": device, **options.env_args})
    arguments = {"task": options.env, "device": device, "headless": headless}
    return TensorSource(options, ISAAC, arguments, evaluates=False)


def main(arguments: list[str] | None = None) -> int:
    """Run; return the exit code as train.py does."""

    def program() -> int:
        flags = parse_arguments(arguments, make_parser(__doc__, "train_isaac_async.py"))
        if "env" not in flags and flags.resume is None:
            flags = argparse.Namespace(**vars(flags), env=OWN)
        return train(flags, make_source=lambda options: make_source(options, flags.headless))

    return exit_code(program)


if __name__ == "__main__":
    sys.exit(main())
