"""Does a config of LightZero's zoo run here as it does in LightZero? Sizes are small; everything else is as shipped.

    python -m tests.lightzero.conformance                 every config that LightZero's serial entry can run on this machine
    python -m tests.lightzero.conformance NAME [NAME ...]

Each config runs in a process of its own: LightZero's serial entry, then ours at degrees 0, 1 and 2 with a process for each role.
If ours fails, LightZero's serial entry is asked again with other seeds and for longer: if that fails with the same error, the
config does here what it does there. What was found goes to benchmarks/results/lightzero_configs.json; a config that conforms is
not run again.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "lightzero_configs.json"
DEGREES = (0, 1, 2)
UPDATES = 20
AGAIN = ((1, 60), (2, 60))  # seeds and updates of the serial entry's further tries
SAME = 60  # letters of an error that have to agree
EXTRA = ("Box2D", "cv2", "imageio", "pygame")  # modules of the extra lightzero-envs; gym loads ale_py by itself
ATARI = dict(collect_max_episode_steps=40, eval_max_episode_steps=20)


def small(name: str) -> Any:
    """A config's call, small."""
    from tests.lightzero.small import captured, shrink

    call = captured(name)
    more: dict[str, Any] = {}
    if call.create.policy.type == "gumbel_muzero":
        more["num_simulations"] = 8
        call.main.policy.max_num_considered_actions = min(4, call.main.policy.get("max_num_considered_actions", 4))
    if "atari" in call.create.env.type:
        call.main.env.update(ATARI)
    return replace(shrink(call, **more), max_train_iter=UPDATES)


def serially(name: str, folder: Path, seed: int | None = None, updates: int = UPDATES) -> dict[str, Any]:
    """LightZero's own entry; without a seed with the config's own."""
    from ding.worker import BaseLearner

    from tests.lightzero import small as sizes

    made: list[Any] = []
    init = BaseLearner.__init__

    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        made.append(self)

    BaseLearner.__init__ = noting
    call = replace(small(name), max_train_iter=updates)
    call = call if seed is None else replace(call, seed=seed)
    call.main.exp_name = str(folder / "serial")
    sizes.serially(call)
    return {"updates": made[0].train_iter}


def ours(name: str, degree: int, folder: Path, **options: Any) -> dict[str, Any]:
    """Our run with a process for each role, its weights and its account looked at."""
    import torch
    from ding.policy import create_policy

    from lzero_async.lightzero import running, trainer
    from lzero_async.lightzero.parts import digest_of

    class Checked(trainer.LightZeroRun):
        def _play(self, worker: Any, order: Any, weights: Any, stop: Any) -> Any:
            worker.call("prepare", order, weights)
            assert worker.call("digest") == digest_of(weights.open()), (
                "the collector has other weights than the published ones"
            )
            versions.add(order.version)
            return super()._play(worker, order, weights, stop)

    versions: set[int] = set()
    own, trainer.LightZeroRun = trainer.LightZeroRun, Checked  # type: ignore[misc]
    call = small(name)
    call.main.exp_name = str(folder / f"degree-{degree}")
    given = {"off_policy_degree": degree, "backend": "process", "threads": 1, "plain": True, "report": False, **options}
    try:
        code, _ = running.start(call, running.Wishes(given))
    finally:
        trainer.LightZeroRun = own  # type: ignore[misc]
    assert code == 0, f"exit code {code}"
    summary = json.loads((Path(call.main.exp_name) / "summary.json").read_text())
    found = summary["statistics"]
    assert found["staleness_max"] <= degree, f"staleness {found['staleness_max']} at degree {degree}"
    ended = ("trained_collects", "collect_train_lag", "dropped")
    assert found["collect_count"] == sum(found[key] for key in ended), "the account does not add up"
    assert found["failed"] == found["restarts"] == 0
    assert summary["counts"]["updates"] >= UPDATES and len(versions) > 1
    checkpoints = sorted((Path(call.main.exp_name) / "ckpt").glob("*.pth.tar"))
    plan = running.compile_plan(call, call.main, running.build_options({}), folder / "loading")
    policy = create_policy(plan.easy().policy, enable_field=["learn", "collect", "eval"])
    for file in checkpoints:
        policy.learn_mode.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    assert any(file.name.startswith("iteration_") for file in checkpoints)
    return {
        "staleness_max": found["staleness_max"],
        "updates": summary["counts"]["updates"],
        "checkpoints": len(checkpoints),
    }


def _one(name: str, how: str, *again: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="lightzero-") as place:
        os.chdir(place)
        with contextlib.redirect_stdout(sys.stderr):
            folder = Path("runs")
            return serially(name, folder, *map(int, again)) if how == "serial" else ours(name, int(how), folder)


def _asked(name: str, how: str, seconds: float, *again: int) -> dict[str, Any]:
    """The result of one try in a process of its own."""
    command = [sys.executable, "-m", "tests.lightzero.conformance", "--one", name, how, *map(str, again)]
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy"}
    begun = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, cwd=Path(__file__).parents[2], env=environment, check=False
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"ok": False, "why": f"not finished after {seconds:.0f} s"}
    spent = round(time.monotonic() - begun, 1)
    if done.returncode == 0:
        return {"ok": True, "seconds": spent, **json.loads(done.stdout.splitlines()[-1])}
    last = [line for line in done.stderr.strip().splitlines() if line.strip()]
    return {"ok": False, "seconds": spent, "why": (last or ["?"])[-1][:300]}


def page() -> None:
    """Write docs/lightzero-configs.md: every config of the wheel, with what was found here. What a config needs is said as of
    the locked stack, whether or not the extra is installed."""
    sys.modules.update(dict.fromkeys(EXTRA))  # cannot be imported
    from lzero_async.lightzero.listing import RUNS, rows

    known: dict[str, Any] = json.loads(RESULTS.read_text())
    lines = [
        "# The configs of LightZero 0.2.0", "", "Written by `make lightzero-all`. *Conforms*: run small by LightZero's serial",
        "entry and here at degrees 0, 1 and 2 with a process for each role; the bound was kept, every collect played with the",
        "published weights bit by bit, and LightZero loads the checkpoints. *Needs*: a package, a GPU or ranks that the",
        "locked stack does not have; those that were tried with the packages of the extra `lightzero-envs` say so.",
        "*Broken upstream*: LightZero's own entry fails.", "",
        "| config | entry | policy | environment | here |", "|---|---|---|---|---|",
    ]  # fmt: skip
    counts: Counter[str] = Counter()
    for row in rows():
        found = known.get(row.name, {})
        good = [degree for degree in DEGREES if found.get(str(degree), {}).get("ok")]
        status = row.status
        if good:
            status = "conforms" if len(good) == len(DEGREES) else f"conforms at degree {', '.join(map(str, good))} only"
            status += "" if row.status == RUNS else f" ({row.status})"
        elif found.get("serial", {}).get("ok") is False:
            status = f"LightZero's serial entry: {found['serial']['why']}"
        elif "again" in found:
            seed, why = next((one["seed"], one["why"]) for one in found["again"] if not one["ok"])
            status = f"LightZero's serial entry, seed {seed}: {why}"
        elif found.get("serial", {}).get("ok"):
            status = f"fails here, serial ran: {found[str(DEGREES[0])]['why']}"
        counts[status.split(":")[0].split(" ")[0]] += 1
        lines.append(f"| {' | '.join([row.name, *row[1:4], status])} |")
    said = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    (RESULTS.parents[2] / "docs" / "lightzero-configs.md").write_text("\n".join([*lines, "", f"In all: {said}.", ""]))


def main(names: list[str]) -> int:
    """Try each; print and keep what was found."""
    from lzero_async.lightzero.listing import RUNS, rows

    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    listed = {row.name: row for row in rows()}
    wanted = names or [row.name for row in listed.values() if row.status == RUNS]
    for name in wanted:
        if not names and all(known.get(name, {}).get(str(degree), {}).get("ok") for degree in DEGREES):
            continue
        row = listed[name]
        found: dict[str, Any] = {"entry": row.entry, "policy": row.policy, "environment": row.environment}
        found["serial"] = _asked(name, "serial", 300)
        for degree in DEGREES if found["serial"]["ok"] else ():
            found[str(degree)] = _asked(name, str(degree), 300)
        if found["serial"]["ok"] and not all(found[str(degree)]["ok"] for degree in DEGREES):
            tries = [{"seed": seed, **_asked(name, "serial", 300, seed, updates)} for seed, updates in AGAIN]
            theirs = {one["why"][:SAME] for one in tries if not one["ok"]}
            ours_too = {found[str(degree)]["why"][:SAME] for degree in DEGREES if not found[str(degree)]["ok"]}
            if ours_too <= theirs:
                found["again"] = tries
        known[name] = found
        RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
        said = {key: value.get("ok") or value.get("why") for key, value in found.items() if isinstance(value, dict)}
        print(name, said, flush=True)
    subprocess.run([sys.executable, "-m", "tests.lightzero.conformance", "--page"], check=True)
    runs = [name for name in wanted if known[name]["serial"]["ok"] and "again" not in known[name]]
    bad = [name for name in runs if not all(known[name][str(degree)]["ok"] for degree in DEGREES)]
    print(f"{len(wanted)} configs, {len(runs)} run in LightZero's serial entry, {len(bad)} of those fail here")
    return int(bool(bad))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(_one(*sys.argv[2:])))
    elif sys.argv[1:] == ["--page"]:
        page()
    else:
        sys.exit(main(sys.argv[1:]))
