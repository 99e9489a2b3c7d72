"""Options: every shipped one loads, every name and value is checked, and the errors teach."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable
from dataclasses import MISSING
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from lzero_async.errors import ConfigError
from lzero_async.runs.options import as_dict
from lzero_async.validation import auto_degree
from zoo.jericho.priorzero import priorzero_config
from zoo.jericho.priorzero.options import (
    OPTIONS,
    backend_of,
    build_options,
    by_section,
    check_options,
    command_line,
    device_of,
    plays_asynchronously,
    steps_per_collect,
    threads_of,
)
from zoo.jericho.priorzero.play.components import Parts, _engine_options
from zoo.jericho.priorzero.priorzero_entry import changes_of, main, parse_arguments
from zoo.jericho.priorzero.sections import PriorZeroOptions


def test_the_config_file_and_the_types_name_the_same_options_in_the_same_order() -> None:
    assert {name: list(values) for name, values in priorzero_config.SECTIONS.items()} == {
        name: list(options) for name, options in OPTIONS.items()
    }


def test_values_and_meanings_stand_in_the_config_file_alone() -> None:
    for options in OPTIONS.values():
        assert all(option.default is MISSING and not option.help for option in options.values())
    assert all(option.help for option in command_line().options.values())
    assert command_line().options["batch_size"].default == priorzero_config.policy_config["batch_size"]


def test_an_option_has_its_name_and_its_flag_for_itself() -> None:
    names = [name for options in OPTIONS.values() for one in options.values() for name in (one.name, *one.also)]
    assert len(set(names)) == len(names)


def test_values_have_the_types_that_are_written_beside_them() -> None:
    options, found = build_options(), 0
    for section, kind in get_type_hints(PriorZeroOptions).items():
        for name, hint in get_type_hints(kind).items():
            if hint in (bool, int, float, str):
                assert type(getattr(getattr(options, section), name)) is hint, name
                found += 1
    assert found > 60


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("preset", priorzero_config.PRESETS)
def test_every_preset_is_valid(preset: str, quick: bool) -> None:
    options = build_options(preset, quick_test=quick)
    assert options.run_config.exp_name
    assert (preset == "embedded") == (options.llm_config.llm_engine == "transformers")


def test_every_option_is_explained_in_the_line_above_it() -> None:
    lines = Path(priorzero_config.__file__).read_text().splitlines()
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in OPTIONS:
            for keyword in node.value.keywords:
                assert lines[keyword.lineno - 2].strip().startswith("# "), keyword.arg


def test_the_examples_of_the_config_are_its_own_options() -> None:
    text = priorzero_config.__doc__ or ""
    examples = [line.strip().split("#")[0] for line in text.splitlines() if "policy_config.update(" in line]
    assert len(examples) == 4
    for example in examples:
        call = ast.parse(example.strip()).body[0].value
        changes = {f"policy_config.{word.arg}": ast.literal_eval(word.value) for word in call.keywords}
        build_options(changes=changes)


def read(*arguments: str) -> PriorZeroOptions:
    flags = parse_arguments(list(arguments))
    return build_options(
        flags.preset, quick_test=flags.quick_test, changes=changes_of(flags), assignments=flags.assignments
    )


def test_every_option_has_a_flag() -> None:
    words = "--batch-size 24 --num_simulations=9 --async_eval --eval_modes prior,llm --llm-weight 0.5 --trace false"
    options = read(*words.split(), "--ray_resources", '{"collector": {"CPU": 2}}', "--off_policy_degree", "-1")
    assert (options.policy_config.batch_size, options.policy_config.num_simulations) == (24, 9)
    assert (options.policy_config.async_eval, options.policy_config.off_policy_degree) == (True, -1)
    assert options.policy_config.ray_resources == {"collector": {"CPU": 2.0}}
    assert (options.run_config.eval_modes, options.run_config.trace) == (("prior", "llm"), False)
    assert options.llm_config.llm_weight == 0.5
    assert read("--seed", "3", "--set", "run_config.seed=4").run_config.seed == 4


@pytest.mark.parametrize(
    ("older", "section", "name", "value"),
    [
        ("enable_async_eval", "policy_config", "async_eval", True),
        ("learner_device", "policy_config", "device", "cpu"),
        ("collector_env_num", "env_config", "num_envs", 3),
        ("max_env_step", "run_config", "max_env_steps", 77),
    ],
)
def test_older_names_are_the_same_options(
    older: str, section: str, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(options: PriorZeroOptions) -> Any:
        return getattr(getattr(options, section), name)

    assert found(read(f"--{older}={value}")) == value
    assert found(read("--set", f"{section}.{older}={value}")) == value
    assert found(build_options(saved={section: {older: value}})) == value
    monkeypatch.setitem(priorzero_config.SECTIONS[section], older, value)  # an edited file
    assert found(build_options()) == value
    assert found(build_options(changes={f"{section}.{name}": found(build_options(changes={}))})) == value


def test_a_server_means_vllm_and_a_quick_test_has_its_own_folder() -> None:
    assert read("--llm_url", "http://here:1").llm_config.llm_engine == "vllm"
    assert read("--llm_url", "http://here:1", "--llm_engine", "transformers").llm_config.llm_engine == "transformers"
    assert read("--quick_test").run_config.exp_name == "runs/quick_test"
    assert read("--quick_test", "--exp_name", "mine").run_config.exp_name == "mine"


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: lzero-async train priorzero [options]")
    for name in (*command_line().options, "preset", "quick_test", "resume", "set"):
        assert f"--{name} " in said, name
    assert "policy_config: how asynchronous the training is" in said
    assert "--enable_async_eval" not in said
    assert "(default: prior,world_model,llm)" in " ".join(said.split())


def test_later_layers_win() -> None:
    options = build_options(
        "qwen2.5-7b",
        quick_test=True,
        changes={"policy_config.batch_size": 20},
        assignments=["policy_config.batch_size=24", "llm_config.llm=some/model", "run_config.trace=true"],
    )
    assert options.policy_config.batch_size == 24
    assert options.policy_config.num_simulations == 8
    assert options.llm_config.tensor_parallel_size == 2
    assert options.llm_config.llm == "some/model"
    assert options.run_config.trace is True


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("policy_config.batchsize=3", ["batchsize", "batch_size"]),
        ("polcy_config.batch_size=3", ["polcy_config", "policy_config"]),
        ("batch_size=3", ["policy_config.batch_size"]),
        ("policy_config.seed=3", ["run_config"]),
        ("policy_config.batch_size", ["'='"]),
        ("policy_config.off_policy_degree=-2", ["off_policy_degree", "-2", "at least -1"]),
        ("policy_config.batch_size=many", ["batch_size", "many", "whole number"]),
        ("policy_config.discount_factor=1.5", ["discount_factor", "between 0 and 1"]),
        ("policy_config.learning_rate=0", ["learning_rate", "above 0"]),
        ("policy_config.devices=cpu", ["device"]),
        ("policy_config.learner_device=tpu", ["policy_config.device", "tpu", "cuda"]),
        ("policy_config.collector_devices=cuda:0,gpu1", ["collector_devices", "gpu1"]),
        ("policy_config.torch_threads=1000", ["torch_threads", "1000", "core"]),
        ("policy_config.num_collectors=2", ["num_collectors", "degree"]),
        ("policy_config.adaptive_degree=True", ["off_policy_degree 1"]),
        ("policy_config.backend=inlin", ["inline, thread, process"]),
        ("llm_config.root_policy=magic", ["llm_plus_wm_logits"]),
        ("run_config.eval_modes=3", ["list of"]),
        ("run_config.eval_modes=['best']", ["prior, world_model, llm"]),
        ("run_config.exp_name=", ["exp_name"]),
        ("run_config.trace=1", ["True or False"]),
        ("policy_config.embed_dim=30", ["multiple of 8"]),
        ("policy_config.replay_buffer_size=10", ["batch_size"]),
        ("policy_config.root_window=8", ["num_unroll_steps"]),
        ("llm_config.root_policy=wm_logits", ["loads no language model", "world_model"]),
        ("run_config.max_env_step=0", ["never end"]),
        ("run_config.target_score=-1", ["target_score", "between"]),
        ("run_config.seed=99999999999999999999999", ["seed", "below"]),
        ("policy_config.epsilon={[1]:2}", ["epsilon", "number"]),
    ],
)
def test_a_bad_option_is_one_sentence_that_helps(assignment: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        build_options(assignments=[assignment])
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_an_unknown_or_missing_option_in_the_file_is_found() -> None:
    sections = {name: dict(values) for name, values in priorzero_config.SECTIONS.items()}
    sections["policy_config"]["off_policy_degre"] = 3
    with pytest.raises(ConfigError, match="did you mean 'off_policy_degree'"):
        check_options(sections)
    sections = {name: dict(values) for name, values in priorzero_config.SECTIONS.items()}
    del sections["policy_config"]["batch_size"]
    with pytest.raises(ConfigError, match=r"policy_config\.batch_size is missing"):
        check_options(sections)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--env_id", "no_such_game.z5"],
        ["--set", "policy_config.batchsize=3"],
        ["--off_policy_degree", "-5"],
        ["--off_policy_degre", "5"],
        ["--seed", "many"],
        ["--seed"],
        ["--preset", "none"],
        ["--resume"],
        ["--resume", "nowhere.safetensors"],
        ["--env_id", "zork1.z5"],  # absent, and this is no quick test
    ],
)
def test_bad_input_is_exit_code_2_and_nothing_is_written(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("LZERO_ASYNC_GAMES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LZERO_ASYNC_CACHE", str(tmp_path / "cache"))
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.strip().startswith("error: ")
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["prior,llm", "[prior, llm]", "['prior', 'llm']", "('prior', 'llm')"])
def test_lists_may_be_written_as_one_would(text: str) -> None:
    assert build_options(assignments=[f"run_config.eval_modes={text}"]).run_config.eval_modes == ("prior", "llm")


def test_whole_numbers_may_be_written_with_an_exponent() -> None:
    assert (
        build_options(assignments=["policy_config.replay_buffer_size=1e5"]).policy_config.replay_buffer_size == 100_000
    )


def test_the_automatic_degree_counts_collects() -> None:
    options = build_options(changes={"policy_config.n_episode": 8, "env_config.max_steps": 80})
    assert steps_per_collect(options) == 640
    assert auto_degree(options.policy_config.replay_buffer_size, steps_per_collect(options)) == 3


def test_the_options_of_a_saved_run_stand_in_for_the_preset() -> None:
    saved = build_options(changes={"policy_config.batch_size": 48, "run_config.eval_modes": ["llm"]})
    options = build_options(saved=as_dict(saved), changes={"run_config.seed": 5})
    assert (options.policy_config.batch_size, options.run_config.eval_modes, options.run_config.seed) == (
        48,
        ("llm",),
        5,
    )
    with pytest.raises(ConfigError, match="did you mean"):
        build_options(saved={"policy_config": {"batchsize": 3}})


def test_flags_that_are_not_given_change_nothing() -> None:
    assert changes_of(parse_arguments([])) == {}
    assert by_section({"seed": 3, "unknown": 4}) == {"run_config.seed": 3}


@pytest.mark.parametrize(
    ("settings", "backend", "apart"),
    [
        ([], "inline", False),
        (["policy_config.enable_async_eval=True"], "process", False),
        (["policy_config.off_policy_degree=2"], "process", True),
        (["policy_config.off_policy_degree=-1"], "process", True),
        (["policy_config.off_policy_degree=2", "policy_config.backend=thread"], "thread", True),
        (["policy_config.off_policy_degree=2", "env_config.env_asynchrony=off"], "process", False),
        (["policy_config.backend=process"], "process", False),
        (["env_config.env_asynchrony=on"], "inline", True),
    ],
)
def test_where_roles_live_and_whether_games_go_apart(settings: list[str], backend: str, apart: bool) -> None:
    options = build_options(assignments=settings)
    assert (backend_of(options), plays_asynchronously(options)) == (backend, apart)


def test_roles_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    own_choice = ["policy_config.torch_threads=0"]
    assert threads_of(build_options(assignments=own_choice), "learner") == 8
    three = [*own_choice, "policy_config.off_policy_degree=4", "policy_config.num_collectors=3"]
    assert threads_of(build_options(assignments=three), "collector") == 2
    with pytest.raises(ConfigError, match="each may use 2"):
        build_options(assignments=[*three[1:], "policy_config.torch_threads=3"])


def test_on_a_cluster_roles_have_the_cores_that_ray_keeps_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    settings = ["policy_config.torch_threads=0", "policy_config.off_policy_degree=9", "policy_config.num_collectors=9"]
    settings += ["policy_config.backend=ray"]
    assert threads_of(build_options(assignments=settings), "learner") == 1  # one machine, ten roles
    settings += ["policy_config.ray_address=auto", 'policy_config.ray_resources={"collector": {"CPU": 4}}']
    options = build_options(assignments=settings)
    kinds = ("learner", "collector", "evaluator")
    assert [threads_of(options, kind) for kind in kinds] == [8, 4, 1]
    options = build_options(assignments=[*settings, "policy_config.torch_threads=6"])
    assert [threads_of(options, kind) for kind in kinds] == [6, 6, 6]


def test_each_machine_has_caches_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LZERO_ASYNC_CACHE", str(tmp_path))
    here = Parts(build_options(), None, tmp_path)  # type: ignore[arg-type]
    assert here._of_this_machine(tmp_path / "cache.sqlite") == tmp_path / "cache.sqlite"
    packed = pickle.dumps(here)
    monkeypatch.setattr("socket.gethostname", lambda: "far-away")
    there = pickle.loads(packed)
    assert there._of_this_machine(tmp_path / "cache.sqlite") == tmp_path / "cache-far-away.sqlite"
    assert there.key != here.key


def test_roles_take_devices_in_turn() -> None:
    assert [device_of("cuda:0,cuda:1", number) for number in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert device_of("auto", 5) == "auto"


class _Made(Exception):
    """A model is about to be made: its configuration."""


def _seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As if there were four GPUs; the devices that become the default, in order."""
    import torch

    taken: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    return taken


@pytest.mark.parametrize(
    ("device", "expected"), [("cuda:1", "cuda:1"), ("cuda", "cuda:0"), ("auto", "cuda:0"), ("cuda:3", "cuda:3")]
)
@pytest.mark.parametrize("role", ["learner", "rank", "player", "reanalyzer"])
def test_every_role_makes_its_model_where_its_data_go(
    role: str, device: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DI-engine's `model.cuda()` means the default device, LightZero's tensors the one of the configuration."""
    from lzero.model import unizero_model

    from zoo.jericho.priorzero.learn import reanalyze
    from zoo.jericho.priorzero.roles import learner as learner_role
    from zoo.jericho.priorzero.roles import players
    from zoo.jericho.priorzero.roles import rank as rank_role

    parts = Parts(build_options(), None, tmp_path)  # type: ignore[arg-type]
    parts.unizero("cpu")  # what is imported for it looks at the GPUs
    taken = _seen(monkeypatch)

    def learner(cfg: Any, *_: object, **__: object) -> None:
        raise _Made(cfg.device, cfg.cuda, cfg.model.world_model_cfg.device)

    def model(**cfg: Any) -> None:
        raise _Made(cfg["world_model_cfg"].device, True, cfg["world_model_cfg"].device)

    monkeypatch.setattr(learner_role, "Learner", learner)
    monkeypatch.setattr(rank_role, "new_policy", learner)
    monkeypatch.setattr(unizero_model, "UniZeroModel", model)
    makers: dict[str, Callable[[], object]] = {
        "learner": lambda: learner_role.LearnerRole(parts, device, print),
        "rank": lambda: rank_role.RankRole(parts, 0, device, print),
        "player": lambda: players._PlayingRole(parts, 1, device, print, asynchronous=False),
        "reanalyzer": lambda: reanalyze.ReanalyzeRole(parts, device, False, print),
    }
    with pytest.raises(_Made) as made:
        makers[role]()
    assert made.value.args == (expected, True, expected)
    assert taken == [expected]


def test_the_language_model_has_a_device_with_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    _seen(monkeypatch)
    llm = build_options().llm_config
    assert [_engine_options(llm, device)["device"] for device in ("auto", "cuda", "cuda:2", "cpu")] == [
        "cuda:0", "cuda:0", "cuda:2", "cpu",
    ]  # fmt: skip
