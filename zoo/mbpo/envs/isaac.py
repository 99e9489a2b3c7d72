"""Isaac Lab's environments, made in the process that plays them. Needs Isaac Lab and a GPU; not run by this project's tests."""

from __future__ import annotations

from typing import Any

from lzero_async.errors import ConfigError

MISSING = (
    "Isaac Lab is not installed here ({error}); install it as its own documentation says and run this with its Python, or try "
    "--task tensor-pendulum, which needs nothing."
)


def make_env(task: str, num_envs: int, device: str, headless: bool) -> Any:
    """Start the simulator, which must come before any other import of it, and make the environment of that task."""
    try:
        from isaaclab.app import AppLauncher
    except ImportError as error:
        raise ConfigError(MISSING.format(error=error)) from error
    AppLauncher(headless=headless, device=device)
    import gymnasium
    import isaaclab_tasks  # noqa: F401  it registers the tasks
    from isaaclab_tasks.utils import parse_env_cfg

    config = parse_env_cfg(task, device=device, num_envs=num_envs)
    if hasattr(config, "compute_final_obs"):
        config.compute_final_obs = True  # so that transitions at a time limit can be kept
    return gymnasium.make(task, cfg=config).unwrapped
