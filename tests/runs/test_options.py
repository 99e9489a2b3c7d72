"""The table of options that the applications share: its checks, its command line, and its errors."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from lzero_async.errors import ConfigError
from lzero_async.runs.checks import (
    Check,
    arguments,
    between,
    device,
    flag,
    nonempty,
    optional,
    present_device,
    seed,
    text,
    whole,
    words,
)
from lzero_async.runs.options import Also, CommandLine, Only, as_dict, groups_of, make_parser


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Environment."""

    env: Annotated[str, nonempty, "its name", Also("task")] = "CartPole-v1"
    num_envs: Annotated[int, whole(1), "100 % of them", Also("n_envs", "envs")] = 8
    env_args: Annotated[dict[str, Any], arguments, "its arguments, 5 %"] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Run: how long."""

    target_score: Annotated[float | None, between(-1e6, 1e6), "the end", Also("target_return")] = None
    limit: Annotated[int | None, whole(0), "another end"] = None
    share: Annotated[float, between(0, 1), "of something"] = 0.5
    trace: Annotated[bool, "write a trace"] = True
    order: Annotated[Literal["fifo", "newest"], "which comes first"] = "fifo"
    degree: Annotated[int, whole(-1), "of asynchrony", Only("async")] = -1


@dataclass(frozen=True, kw_only=True)
class Options(Environment, Run):
    """All of them."""


TABLE = CommandLine(Options, ["preset", "env_arg"])


def parser() -> argparse.ArgumentParser:
    made = make_parser("What it\n  does", "tool.py")
    made.add_argument("--preset")
    made.add_argument("--env_arg", action="append")
    TABLE.add_to(made)
    return made


def parse(line: str) -> argparse.Namespace:
    return TABLE.parse(parser(), line.split())


def changes(line: str) -> dict[str, Any]:
    return TABLE.changes(parse(line))


def said_by(function: Any, *given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        function(*given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- checks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "value", "result"),
    [
        (whole(2), 2, 2),
        (between(0, 1), 1, 1.0),
        (words("a", "b"), "b", "b"),
        (optional(whole(2)), None, None),
        (optional(whole(2)), 3, 3),
        (text, "", ""),
        (nonempty, " a", " a"),
        (flag, False, False),
        (seed, 2**31 - 1, 2**31 - 1),
        (device, "auto", "auto"),
        (device, " cuda:12 ", "cuda:12"),
        (arguments, {"a": 1}, {"a": 1}),
        (arguments, "", {}),
        (arguments, "g=9.81, agent = B_line , on=true,", {"g": 9.81, "agent": "B_line", "on": True}),
        (arguments, '{"list": [1, 2]}', {"list": [1, 2]}),
    ],
)
def test_what_a_check_takes(check: Check, value: Any, result: Any) -> None:
    assert check("it", value) == result
    assert type(check("it", value)) is type(result)


@pytest.mark.parametrize(
    ("check", "value", "said"),
    [
        (whole(2), 1, "at least 2"),
        (between(0, 1), 1.5, "between 0 and 1"),
        (words("a", "b"), "c", "one of a, b"),
        (optional(whole(2)), 1, "at least 2"),
        (text, 3, "must be text"),
        (nonempty, " ", "it is empty"),
        (nonempty, None, "must be text"),
        (flag, 1, "True or False"),
        (flag, "true", "True or False"),
        (seed, 2**31, "below 2**31"),
        (seed, -1, "at least 0"),
        (device, "tpu", "'cpu', 'cuda'"),
        (device, "cuda:", "'cpu', 'cuda'"),
        (device, 0, "must be text"),
        (arguments, "g", "'g', which is not NAME=VALUE"),
        (arguments, "=3", "'=3', which is not NAME=VALUE"),
        (arguments, '{"g": }', "not JSON"),
        (arguments, 3, "must be text"),
    ],
)
def test_what_a_check_refuses(check: Check, value: Any, said: str) -> None:
    message = said_by(check, "it", value)
    assert message.startswith("it ")
    assert said in message


def test_a_seed_may_have_more_bits() -> None:
    assert seed("it", 2**31, bits=32) == 2**31
    assert "below 2**32" in said_by(seed, "it", 2**32, 32)


def test_arguments_are_copied() -> None:
    given = {"a": 1}
    arguments("it", given)["b"] = 2
    assert given == {"a": 1}


@pytest.mark.parametrize(
    ("name", "gpus", "result"),
    [("cpu", 2, "cpu"), ("auto", 0, "cpu"), ("auto", 2, "cuda"), ("cuda", 1, "cuda"), ("cuda:1", 2, "cuda:1")],
)
def test_devices_that_are_here(name: str, gpus: int, result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(gpus, monkeypatch)
    assert present_device("device", name) == result


@pytest.mark.parametrize(
    ("name", "gpus", "said"), [("cuda", 0, "no GPU"), ("cuda:0", 0, "no GPU"), ("cuda:2", 2, "2 GPU(s)")]
)
def test_devices_that_are_not_here(name: str, gpus: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(gpus, monkeypatch)
    message = said_by(present_device, "device", name)
    assert message.startswith(f"device is {name!r}, ") and said in message and message.endswith("; use --device cpu.")
    assert said_by(present_device, "It", name, "buy one").endswith("; buy one.")


def pretend(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)


# -- the table -----------------------------------------------------------------------------------------------------------


def test_missing_options_take_their_defaults() -> None:
    values = TABLE.check({"num_envs": 3})
    assert list(values) == list(TABLE.options)
    assert values == {name: option.default for name, option in TABLE.options.items()} | {"num_envs": 3}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_env": 3}, "no option num_env; did you mean num_envs?"),
        ({"qqqq": 3}, "no option qqqq; --help lists them."),
        ({"presets": 3}, "no option presets; --help lists them."),  # a flag, but no option
        ({"num_envs": "3"}, "num_envs is '3'"),
        ({"num_envs": 0}, "num_envs is 0"),
        ({"target_score": 1e7}, "target_score is 10000000.0"),
    ],
)
def test_unknown_names_and_bad_values_are_refused(values: dict[str, Any], said: str) -> None:
    assert said in said_by(TABLE.check, values)


def test_an_option_may_belong_to_some_only() -> None:
    assert TABLE.options["degree"].belongs_to("async")
    assert not TABLE.options["degree"].belongs_to("sync")
    assert TABLE.options["env"].belongs_to("sync")


# -- the command line ----------------------------------------------------------------------------------------------------


def test_flags_that_are_not_given_are_left_out() -> None:
    assert vars(parse("")) == {}
    assert changes("--preset big") == {}
    plain = argparse.ArgumentParser()
    TABLE.add_to(plain)
    assert vars(TABLE.parse(plain, ["--share", "1"])) == {"share": "1"}


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("--num-envs 1_000", {"num_envs": 1000}),
        ("--num_envs=3 --share 1", {"num_envs": 3, "share": 1.0}),
        ("--task my-task_1", {"env": "my-task_1"}),
        ("--env=--my-task", {"env": "--my-task"}),
        ("--env-args red-agent=a-b", {"env_args": "red-agent=a-b"}),
        ("--env-args=red-agent=a-b", {"env_args": "red-agent=a-b"}),
        ("--target-return -1e3 --degree -1", {"target_score": -1000.0, "degree": -1}),
        ("--target_return -.5 --limit 1_0", {"target_score": -0.5, "limit": 10}),
        ("--trace --num_envs 3", {"trace": True, "num_envs": 3}),
        ("--trace No", {"trace": False}),
        ("--trace=1", {"trace": True}),
        ("--n-envs 3 --order newest", {"num_envs": 3, "order": "newest"}),
        ("--envs 3 --num_envs 4", {"num_envs": 4}),
    ],
)
def test_what_a_line_means(line: str, result: dict[str, Any]) -> None:
    found = changes(line)
    assert found == result
    assert {name: type(value) for name, value in found.items()} == {n: type(value) for n, value in result.items()}


def test_values_of_other_flags_keep_their_hyphens() -> None:
    assert parse("--env-arg red-agent=a-b --env-arg=n=-1").env_arg == ["red-agent=a-b", "n=-1"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--num-env 3", "no option num_env; did you mean num_envs?"),
        ("--presets=3", "no option presets; did you mean preset?"),
        ("--env-ar x", "no option env_ar; did you mean env_arg?"),
        ("--qqqqq", "no option qqqqq; --help lists them."),
        ("CartPole-v1", "'CartPole-v1' cannot be read; write options as --num_envs 8."),
        ("--num_envs=8 -3", "'-3' cannot be read"),
        ("--num_envs many", "num_envs is 'many'; it must be a whole number."),
        ("--num_envs 1.5", "num_envs is '1.5'; it must be a whole number."),
        ("--limit 1.5", "limit is '1.5'; it must be a whole number."),
        ("--target_return high", "target_score is 'high'; it must be a number."),
        ("--trace perhaps", "trace is 'perhaps'; it must be true or false."),
        ("--num_envs", "Argument --num_envs: expected one argument; --help explains every option."),
        ("--n-env 3", "no option n_env; did you mean n_envs?"),
    ],
)
def test_a_line_that_means_nothing(line: str, said: str) -> None:
    assert said in said_by(changes, line)


def test_without_arguments_those_of_the_program_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["tool.py", "--num-envs", "5"])
    assert TABLE.changes(TABLE.parse(parser(), None)) == {"num_envs": 5}
    assert vars(TABLE.parse(parser(), [])) == {}


def test_options_without_numbers_have_an_example_too() -> None:
    assert "--name value" in said_by(CommandLine({}).parse, make_parser("", "tool.py"), ["x"])


def test_help_shows_groups_defaults_and_kinds() -> None:
    lines = " ".join(parser().format_help().split())
    for part in (
        "usage: tool.py [options] What it does",
        "environment: --env WORD its name (default: CartPole-v1)",
        "--num_envs N 100 % of them (default: 8)",
        "--env_args WORD its arguments, 5 % run: how long:",
        "--target_score X the end --limit N another end --share X of something (default: 0.5)",
        "--trace [BOOL] write a trace (default: true)",
        "--degree N of asynchrony (async only; default: -1)",
    ):
        assert part in lines
    assert "What it\n  does" in parser().format_help()
    assert "--task" not in lines and "--n_envs" not in lines  # known, but not taught


# -- the dataclass ---------------------------------------------------------------------------------------------------------


def test_checked_values_make_the_dataclass() -> None:
    options = Options(**TABLE.check({"n_envs": 3, "env_args": "g=1"}))
    assert options == Options(num_envs=3, env_args={"g": 1})
    assert as_dict(options)["num_envs"] == 3
    assert Options(**TABLE.check(as_dict(options))) == options  # what a run has saved is read again


def test_an_option_is_given_by_one_name() -> None:
    assert "n_envs and num_envs are the same option" in said_by(TABLE.check, {"num_envs": 3, "n_envs": 4})


def test_groups_are_the_classes_and_their_docstrings_the_titles() -> None:
    assert {title: list(group) for title, group in groups_of(Options).items()} == {
        "environment": ["env", "num_envs", "env_args"],
        "run: how long": ["target_score", "limit", "share", "trace", "order", "degree"],
    }


def test_a_class_may_give_an_option_another_default_and_range() -> None:
    changed = CommandLine(Larger)
    assert changed.check({})["num_envs"] == 50
    assert "at least 10" in said_by(changed.check, {"num_envs": 9})
    assert list(changed.options) == ["num_envs", "env", "env_args"]


@dataclass(frozen=True, kw_only=True)
class Larger(Environment):
    """Larger."""

    num_envs: Annotated[int, whole(10), "many"] = 50


@dataclass(frozen=True, kw_only=True)
class WithoutDefault:
    """Without default."""

    size: Annotated[int, whole(1)]


def test_an_option_without_a_default_must_be_given() -> None:
    assert "size is missing" in said_by(CommandLine(WithoutDefault).check, {})
    assert CommandLine(WithoutDefault).check({"size": 2}) == {"size": 2}


@dataclass(frozen=True, kw_only=True)
class WithoutCheck:
    """Without a check."""

    size: Annotated[int, "of it"] = 3


def test_a_number_without_a_range_is_the_programmers_mistake() -> None:
    with pytest.raises(TypeError, match=r"size is a .*int.* without a check"):
        CommandLine(WithoutCheck)
