"""Configuration: where a value comes from, and that a bad one is named in one line."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_common.config import UNITS, ConfigError, ServiceConfig, load, option, parse_address, parse_size


@dataclass(frozen=True)
class Config(ServiceConfig):
    neighbour: str = option("127.0.0.1:1", "address of a neighbour")
    max_held: int = option(10, "how many are held", low=1, high=100)
    period_s: float = option(1.5, "time between two looks, seconds", low=0.1)
    eager: bool = option(False, "whether it starts at once")
    device: tuple[str, ...] = option(("a",), "a device; repeatable")

    def validate(self) -> None:
        if self.neighbour == self.listen:
            raise ConfigError(f"--neighbour={self.neighbour}: it is this service itself")


def read(*argv: str, **environ: str) -> Config:
    return load(Config, "some-service", argv, {f"ROUSE_SOME_SERVICE_{k.upper()}": v for k, v in environ.items()})


def test_a_flag_wins_over_the_environment_and_that_over_the_default() -> None:
    assert read().max_held == 10
    assert read(max_held="20").max_held == 20
    assert read("--max-held", "30", max_held="20").max_held == 30


def test_every_kind_is_parsed() -> None:
    config = read("--period-s=0.25", "--eager=yes", "--device", "b", "--device", "c")
    assert (config.period_s, config.eager, config.device) == (0.25, True, ("b", "c"))
    assert read(eager="FALSE", device="x,y").eager is False
    assert read(device="x,y").device == ("x", "y")


def test_the_environment_of_others_is_ignored() -> None:
    config = load(Config, "some-service", (), {"ROUSE_OTHER_MAX_HELD": "7", "ROUSE_DATA_DIR": "/x", "PATH": ""})
    assert config == Config()


@pytest.mark.parametrize(
    ("argv", "environ", "words"),
    [
        (["--max-held=0"], {}, ["--max-held=0", "1 to 100"]),
        (["--max-held=101"], {}, ["--max-held=101", "1 to 100"]),
        (["--max-held=ten"], {}, ["--max-held=ten", "whole number"]),
        (["--max-held=1.5"], {}, ["--max-held=1.5", "whole number"]),
        (["--period-s=nan"], {}, ["--period-s=nan", "finite"]),
        (["--period-s=inf"], {}, ["--period-s=inf", "finite"]),
        (["--eager=perhaps"], {}, ["--eager=perhaps", "true or false"]),
        (["--log-level=LOUD"], {}, ["--log-level=LOUD", "DEBUG, INFO, WARNING, ERROR"]),
        (["--max-hel=1"], {}, ["--max-hel=1", "--help"]),
        (["--max-held"], {}, ["--max-held", "--help"]),
        (["stray"], {}, ["stray", "--help"]),
        ([], {"max_helt": "1"}, ["ROUSE_SOME_SERVICE_MAX_HELT", "ROUSE_SOME_SERVICE_MAX_HELD"]),
        ([], {"max_held": "x"}, ["ROUSE_SOME_SERVICE_MAX_HELD=x", "whole number"]),
        (["--neighbour=h:1", "--listen=h:1"], {}, ["--neighbour=h:1", "itself"]),
    ],
)
def test_a_bad_setting_is_named_in_one_line(argv: list[str], environ: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(*argv, **environ)
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert "\n" not in text


def test_help_names_defaults_and_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read("--help")
    assert caught.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "how many are held (default: 10; environment: ROUSE_SOME_SERVICE_MAX_HELD)" in shown


@pytest.mark.parametrize("text", ["", "host", "host:", ":80", "host:x", "host:65536", "host:-1", "host:٣"])
def test_a_bad_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--listen"):
        parse_address(text, "--listen")


@given(st.from_regex(r"[a-z0-9.-]{1,20}", fullmatch=True), st.integers(0, 65535))
def test_an_address_is_its_parts(host: str, port: int) -> None:
    assert parse_address(f"{host}:{port}", "it") == (host, port)


@given(st.integers(1, 1 << 20), st.sampled_from(sorted(UNITS)))
def test_a_size_is_number_times_unit(number: int, unit: str) -> None:
    assert parse_size(f"{number}{unit}", "it") == number * UNITS[unit]
    assert parse_size(f"{number} {unit.lower()}", "it") == number * UNITS[unit]


def test_a_size_may_have_a_fraction() -> None:
    assert parse_size("1.5GiB", "it") == 3 << 29
    assert parse_size("576460752305.1MB", "it") == 576_460_752_305_100_000


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "-1GiB", "0", "0.2B", "12XiB", "1GiBB", "inf", "infGiB", "nan", "1e9", "9EiB", "9999999TiB", "٣"],
)
def test_a_bad_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--host-memory"):
        parse_size(text, "--host-memory")
