"""Whole runs in which a tiny language model learns: exact at degree 0, within the bound above, nothing lost when it is killed."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lzero_async import load_policy
from lzero_async.errors import ConfigError
from lzero_async.runs import checkpoint
from lzero_async.runs.summary import read_results
from tests.zoo.priorzero.test_engine import write_encoder, write_model
from tests.zoo.priorzero.test_run import ENTRY, SMALL
from tests.zoo.priorzero.test_run import metrics as metrics_of
from zoo.jericho.priorzero.games.files import SHIPPED_GAME, find_game
from zoo.jericho.priorzero.learn.saving import CHECKPOINT
from zoo.jericho.priorzero.llm import ScoreRequest, make_engine
from zoo.jericho.priorzero.llm.prior import LLMPrior
from zoo.jericho.priorzero.llm.trained import Trainable
from zoo.jericho.priorzero.options import build_options
from zoo.jericho.priorzero.priorzero_entry import main
from zoo.jericho.priorzero.roles.export import export, trained_of
from zoo.jericho.priorzero.roles.export import main as export_main
from zoo.jericho.priorzero.trainer import PriorZero
from zoo.jericho.priorzero.tune.learner import LLMLearner

pytestmark = pytest.mark.slow
LEARNING = (
    "llm_train_config.llm_train=both", "llm_train_config.llm_every=2", "llm_train_config.lora_rank=2",
    "llm_train_config.llm_updates=2", "llm_train_config.llm_batch_size=3", "llm_train_config.llm_kl_weight=0.1",
    "llm_train_config.llm_learning_rate=0.01", "llm_train_config.llm_warmup_updates=0",
)  # fmt: skip
MODES = ("--set", "run_config.final_eval_modes=['prior','llm','prior_frozen','llm_frozen']")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models")
    write_encoder(folder / "encoder")
    return write_model(folder / "llm", context=2048)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    patch = pytest.MonkeyPatch()
    patch.setenv("LZERO_ASYNC_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


def settings(llm: str, *more: str) -> list[str]:
    encoder = Path(llm).parent / "encoder"
    return [*SMALL, f"llm_config.llm={llm}", f"encoder_config.encoder_model={encoder}", *LEARNING, *more]


def arguments(llm: str, folder: Path, *more: str) -> list[str]:
    words = [word for setting in settings(llm) for word in ("--set", setting)]
    return ["--exp_name", str(folder), *words, *more]


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "llm/seconds"} for row in metrics_of(folder)]


@pytest.fixture(scope="module")
def straight(llm: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "straight"
    assert main(arguments(llm, folder, "--max_iter", "6", *MODES)) == 0
    return folder


def test_a_run_says_how_the_language_model_learns_and_how_good_its_prior_is(straight: Path) -> None:
    rows = metrics(straight)
    assert [row.get("llm/version") for row in rows] == [None, 1.0, None, 2.0, None, 3.0]
    for row in rows:
        assert 0 <= row["prior/top1"] <= 1 and row["prior/kl"] >= 0 and row["prior/entropy"] > 0
    for row in rows[1::2]:
        assert row["llm/updates"] == 2 and row["llm/staleness"] == 0 and row["llm/examples"] > 3
        assert all(
            math.isfinite(row[f"llm/{name}"]) for name in ("distill_loss", "rft_loss", "kl_to_reference", "top1")
        )
    results = read_results(straight)
    assert {row["mode"] for row in results["evaluations"]} == {"prior", "llm", "prior_frozen", "llm_frozen"}
    assert results["llm"]["version"] == 3 and results["llm"]["oldest"] == 0
    assert set(results["measures"]) >= {"prior top-1", "prior KL", "prior entropy"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """The version and digest of the weights that each question to a prior was answered with."""
    found: list[tuple[int, str]] = []
    call = LLMPrior.__call__

    def noted(self: LLMPrior, items: Any) -> Any:
        found.append((self.engine.weights_version, self.engine.weights_digest))
        return call(self, items)

    monkeypatch.setattr(LLMPrior, "__call__", noted)
    return found


def test_the_weights_that_play_are_those_that_were_trained(
    llm: str, tmp_path: Path, asked: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At degree 0 the collect after a version plays with it; frozen modes play with the model as it was, and only they."""
    batches: list[Any] = []
    train = LLMLearner.train

    def noted(self: LLMLearner, collected: Any, *more: Any) -> Any:
        batches.extend(collected)
        return train(self, collected, *more)

    monkeypatch.setattr(LLMLearner, "train", noted)
    folder = tmp_path / "run"
    words = arguments(
        llm, folder, "--max_iter", "2", "--set", "llm_train_config.llm_every=1", "--set", "run_config.eval_every=0"
    )
    assert main([*words, "--set", "run_config.final_eval_modes=[]"]) == 0
    first, second = batches
    assert [one.tags["llm_version"] for one in (first, second)] == [0, 1]
    plain = make_engine("transformers", llm, device="cpu")
    assert {digest for version, digest in asked if version == 0} == {plain.weights_digest}
    assert len({digest for version, digest in asked if version == 1}) == 1
    rows = {tuple(row.tokens): row.scores for row in first.prompts.rows()}
    common = [(rows[tuple(row.tokens)], row.scores) for row in second.prompts.rows() if tuple(row.tokens) in rows]
    assert common and max(np.abs(one - other).max() for one, other in common) > 1e-3
    asked.clear()
    for mode, frozen in (("llm", False), ("llm_frozen", True), ("prior_frozen", True), ("prior", False)):
        with load_policy(folder, "last", mode=mode) as policy:
            policy.play(1)
        assert asked and {digest == plain.weights_digest for _, digest in asked} == {frozen}, mode
        asked.clear()
    with load_policy(folder, "last", mode="world_model") as policy:  # needs no language model
        policy.play(1)
    assert not asked


def test_kill_9_in_the_middle_of_an_update_and_resume_give_the_same_numbers(
    straight: Path, llm: str, tmp_path: Path
) -> None:
    folder = tmp_path / "broken"
    code = (
        "import os, signal, sys\n"
        "from zoo.jericho.priorzero.tune.learner import LLMLearner\n"
        "update = LLMLearner._update\n"
        "def dying(self, examples):\n"
        "    if self.version == 1 and self.updates == 3:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return update(self, examples)\n"
        "LLMLearner._update = dying\n"
        "from zoo.jericho.priorzero.priorzero_entry import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = arguments(llm, folder, "--max_iter", "6", "--set", "run_config.checkpoint_every=3", *MODES)
    environment = {**os.environ, "PYTHONPATH": str(ENTRY.parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    saved = checkpoint.load(folder / "ckpt" / "last.safetensors", CHECKPOINT)["llm"]
    assert saved["version"] == 1 and len(saved["kept"]) == 1  # the third batch waits for the fourth
    assert main(["--resume", str(folder), "--max_iter", "6"]) == 0
    assert metrics(folder) == metrics(straight)
    scores = [read_results(path)["evaluations"] for path in (folder, straight)]
    for row in (*scores[0], *scores[1]):
        row.pop("seconds")
    assert scores[0] == scores[1]


def test_at_degree_0_processes_give_the_numbers_of_one_process(straight: Path, llm: str, tmp_path: Path) -> None:
    folder = tmp_path / "apart"
    assert main(arguments(llm, folder, "--max_iter", "6", "--set", "policy_config.backend=process", *MODES)) == 0
    assert metrics(folder) == metrics(straight)


class Killing(PriorZero):
    """Kills the language model's learner in the middle of its trains, some times."""

    kills = 2
    killed_at: list[int]

    def _on_event(self, event: Any) -> None:
        if event[0] == "llm updates" and self.kills > 0:
            self.kills -= 1
            self.killed_at.append(self.llm_learner.pid)
            os.kill(self.llm_learner.pid, signal.SIGKILL)
        super()._on_event(event)


@pytest.mark.parametrize("every", [1, 2])
def test_a_killed_learner_of_the_language_model_costs_nothing(llm: str, tmp_path: Path, every: int) -> None:
    changes = settings(
        llm, "policy_config.off_policy_degree=2", "policy_config.num_collectors=2", "run_config.max_iter=8",
        f"llm_train_config.llm_every={every}", "policy_config.restart_backoff=0.01", "llm_train_config.llm_updates=6",
    )  # fmt: skip
    (tmp_path / "run").mkdir()
    agent = Killing(build_options(assignments=changes), find_game(SHIPPED_GAME), tmp_path / "run")
    agent.killed_at = []
    try:
        agent.run()
        statistics = agent.coordinator.get_statistics()
        tuning = agent.tuning
        assert tuning is not None and len(set(agent.killed_at)) == 2
        assert agent.llm_learner.restarts == statistics["restarts"] == 2
        assert tuning.version == 8 // every and statistics["train_count"] == 8
        assert statistics["staleness_max"] <= 2 and tuning.oldest <= -(-2 // every)
        assert statistics["failed"] == statistics["dropped"] == statistics["train_failures"] == 0
    finally:
        agent.close()
    rows = metrics_of(tmp_path / "run")
    assert [row["train"] for row in rows] == list(range(1, 9))
    batches = [json.loads(line)["batch/id"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(Counter(batches).values()) == 1
    versions = [row["llm/version"] for row in rows if "llm/version" in row]
    assert versions == [float(number) for number in range(1, 8 // every + 1)]


def test_a_language_model_that_cannot_learn_ends_the_run_before_the_train(llm: str, tmp_path: Path) -> None:
    """Its failure is the run's, and the world model's learner has not trained either: a resume trains that batch once."""
    changes = settings(
        llm, "policy_config.backend=thread", "policy_config.off_policy_degree=1", "run_config.max_iter=4",
        "run_config.checkpoint_every=0",
    )  # fmt: skip
    (tmp_path / "run").mkdir()
    agent = PriorZero(build_options(assignments=changes), find_game(SHIPPED_GAME), tmp_path / "run")
    call = agent.llm_learner.call

    def failing(method: str, *given: Any, **named: Any) -> Any:
        if method == "train":
            raise ValueError("no memory left")
        return call(method, *given, **named)

    agent.llm_learner.call = failing  # type: ignore[method-assign]
    try:
        with pytest.raises(ValueError, match="no memory left"):
            agent.run()
    finally:
        agent.close()
    state = checkpoint.load(tmp_path / "run" / "ckpt" / "last.safetensors", CHECKPOINT)
    assert state["coordinator"]["gate"]["trained"] == 1 and state["learner"]["updates"] == 3
    assert main(["--resume", str(tmp_path / "run"), "--max_iter", "4"]) == 0
    rows = metrics_of(tmp_path / "run")
    assert [row["learner/updates"] for row in rows] == [3, 6, 9, 12]


def test_collectors_and_evaluator_have_versions_of_their_own_in_one_process(llm: str, tmp_path: Path) -> None:
    folder = tmp_path / "threads"
    more = ["--off_policy_degree", "2", "--async_eval", "--set", "policy_config.backend=thread"]
    more += ["--set", "llm_train_config.llm_every=1", "--set", "run_config.eval_every=1"]
    assert (
        main(arguments(llm, folder, "--max_iter", "5", *more, "--set", "run_config.eval_modes=['llm','llm_frozen']"))
        == 0
    )
    results = read_results(folder)
    assert results["llm"]["version"] == 5 and results["llm"]["oldest"] <= 2
    by_mode = {mode: [r for r in results["evaluations"] if r["mode"] == mode] for mode in ("llm", "llm_frozen")}
    assert len(by_mode["llm"]) == len(by_mode["llm_frozen"]) > 0


# -- what is done with it ---------------------------------------------------------------------------------------------


def test_what_is_exported_says_what_the_run_says(
    straight: Path, llm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = tmp_path / "exported"
    assert export_main([str(straight), str(target), "--weights", "last"]) == 0
    assert "after 3 trains" in capsys.readouterr().out
    AutoModelForCausalLM.from_pretrained(target), AutoTokenizer.from_pretrained(target)
    _, found = trained_of(straight, "last")
    engine = make_engine("transformers", llm, device="cpu", trainable=Trainable(rank=2, alpha=32.0))
    request = ScoreRequest([{"role": "user", "content": "A dark room."}], ("open the door", "go north", "take lamp"))
    before = engine.score([request])[0]
    engine.load_trained(found.trained.open(), found.version, found.digest)
    expected = engine.score([request])[0]
    assert np.abs(expected - before).max() > 1e-3
    np.testing.assert_allclose(
        make_engine("transformers", str(target), device="cpu").score([request])[0], expected, atol=1e-3
    )
    assert export_main([str(straight), str(target)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_run_without_training_has_nothing_to_export(llm: str, tmp_path: Path) -> None:
    words = arguments(llm, tmp_path / "plain", "--max_iter", "1", "--llm_train", "off")
    assert main(words) == 0
    with pytest.raises(ConfigError, match="no trained language model"):
        export(tmp_path / "plain", tmp_path / "x", "last")
    assert not (tmp_path / "x").exists()


def test_a_trained_policy_plays_with_what_it_learned_or_as_it_was(straight: Path) -> None:
    for mode in ("llm", "llm_frozen", "prior", "prior_frozen"):
        with load_policy(straight, "last", mode=mode) as policy:
            engine = policy._evaluator.parts._engine
            one, other = policy.play(1), policy.play(1)
            assert one == other
            assert engine.weights_version == 3  # also after a mode that plays as it was


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("run_config.eval_modes=['llm_frozen']", "llm_train_config.llm_train=off"), "evaluate llm instead"),
        (("llm_config.root_policy=wm_logits", "run_config.eval_modes=['world_model']",
          "run_config.final_eval_modes=[]"), "loads none"),
        (("llm_config.llm_engine=vllm",), "cannot be trained yet"),
        (("llm_config.use_cot=True",), "reasoning cannot be trained yet"),
        (("llm_train_config.llm_trian=off",), "did you mean"),
        (("llm_train_config.llm_share=2",), "llm_share"),
        (("llm_train_config.llm_share=0.5",), "repeats exactly"),
        (("llm_train_config.distill_weight=0",), "give it one"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_one_sentence(changes: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        build_options(assignments=("llm_train_config.llm_train=distill", *changes))
    assert "\n" not in str(caught.value)


def test_a_resumed_run_keeps_what_belongs_to_its_language_model(
    llm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, folder = str(tmp_path / "model"), tmp_path / "run"
    shutil.copytree(llm, model)
    words = arguments(llm, folder, "--max_iter", "2", "--set", f"llm_config.llm={model}")
    assert main([*words, "--set", "run_config.final_eval_modes=['prior']"]) == 0
    last = folder / "ckpt" / "last.safetensors"
    before = checkpoint.load(last, CHECKPOINT)
    for change, said in (
        (("--lora_rank", "4"), "lora_rank was 2"), (("--llm_every", "4"), "llm_every was 2"),
        (("--llm_train", "off"), "what it has learned would be lost"), (("--llm", llm), "llm was"),
        (("--prior_temperature", "2"), "prior_temperature was"),
    ):  # fmt: skip
        assert main(["--resume", str(folder), "--max_iter", "4", *change]) == 2
        assert said in capsys.readouterr().err
    shutil.rmtree(model)
    write_model(tmp_path / "model", seed=9, context=2048)  # another one of the same shape, at the same place
    assert main(["--resume", str(folder), "--max_iter", "4"]) == 2
    assert "not those of this model" in capsys.readouterr().err
    assert export_main([str(folder), str(tmp_path / "exported"), "--weights", "last"]) == 2
    assert "not the one that the run trained" in capsys.readouterr().err and not (tmp_path / "exported").exists()
    after = checkpoint.load(last, CHECKPOINT)
    assert (
        after["llm"]["digest"] == before["llm"]["digest"]
        and after["learner"]["updates"] == before["learner"]["updates"]
    )


def test_a_train_that_never_began_takes_nothing_back(llm: str, tmp_path: Path) -> None:
    """What failed on the way to the learner is not the train before, which was made and counted."""
    (tmp_path / "run").mkdir()
    agent = PriorZero(
        build_options(assignments=settings(llm, "run_config.max_iter=4")), find_game(SHIPPED_GAME), tmp_path / "run"
    )
    call, trains = agent.learner.call, []

    def failing(method: str, *given: Any, **named: Any) -> Any:
        if method == "train":
            trains.append(1)
            if len(trains) == 4:
                raise OSError(28, "No space left on device")
        return call(method, *given, **named)

    agent.learner.call = failing  # type: ignore[method-assign]
    try:
        with pytest.raises(OSError, match="No space left"):
            agent.run()
    finally:
        agent.close()
    state = checkpoint.load(tmp_path / "run" / "ckpt" / "last.safetensors", CHECKPOINT)
    assert state["coordinator"]["gate"]["trained"] == 3 and state["learner"]["updates"] == 9
