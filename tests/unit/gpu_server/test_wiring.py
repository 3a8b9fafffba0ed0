"""The file that says how devices are connected."""

from __future__ import annotations

from pathlib import Path

import pytest

from rouse_common.config import ConfigError, load
from rouse_gpu_server import wiring
from rouse_gpu_server.config import GpuServerConfig
from rouse_gpu_server.wiring import Wiring
from rouse_policy.topology import Topology

DEVICES = ("gpu0", "gpu1", "gpu2")
FILE = """
[[switch]]
devices = ["gpu0", "gpu1"]
rate = "3GB"

[[switch]]
devices = ["gpu2"]

[[device]]
name = "gpu0"
rate = 2000000000

[[link]]
devices = ["gpu2", "gpu0"]
rate = "6GiB"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "topology.toml"
    path.write_text(text)
    return path


def test_a_file_says_switches_rates_and_direct_links(tmp_path: Path) -> None:
    topology = Topology((("gpu0", "gpu1"), ("gpu2",)), {("gpu0", "gpu2"): 6.0 * 2**30})
    wanted = Wiring(topology, (3e9, None), {"gpu0": 2e9})
    path = write(tmp_path, FILE)
    assert wiring.read(path, DEVICES) == wanted
    flags = [f"--device=host:{name}=1MiB" for name in DEVICES]
    assert load(GpuServerConfig, "gpu-server", flags, {"ROUSE_GPU_SERVER_TOPOLOGY": str(path)}).wiring == wanted
    assert load(GpuServerConfig, "gpu-server", flags, {}).wiring == Wiring()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[switch]", "cannot be read as TOML"),
        ("[[bus]]", "unknown table 'bus'"),
        ('switch = "gpu0"', "want tables"),
        ("[[switch]]\nspeed = 1", "switch 1: unknown key 'speed'"),
        ("[[switch]]\ndevices = []", "names 0 devices"),
        ('[[switch]]\ndevices = "gpu0"', "want names of devices"),
        ('[[switch]]\ndevices = ["gpu9"]', "'gpu9' is not among gpu0, gpu1, gpu2"),
        ('[[switch]]\ndevices = ["gpu0", "gpu0"]', "behind 2 switches"),
        ('[[switch]]\ndevices = ["gpu0"]\nrate = "fast"', "want a size"),
        ('[[switch]]\ndevices = ["gpu0"]\nrate = 0', "above zero"),
        ('[[switch]]\ndevices = ["gpu0"]\nrate = true', "want bytes a second"),
        ('[[link]]\ndevices = ["gpu0"]\nrate = 1', "want two"),
        ('[[link]]\ndevices = ["gpu0", "gpu1"]', "link 1: rate = None"),
        ('[[link]]\ndevices = ["gpu0", "gpu0"]\nrate = 1', "no other link"),
        ('[[link]]\ndevices = ["gpu0", "gpu1"]\nrate = 1\n' * 2, "no other link"),
        ('[[device]]\nname = "gpu9"\nrate = 1', "name = 'gpu9'"),
        ('[[device]]\nname = "gpu0"\nrate = 1\n' * 2, "each once"),
        ('[[device]]\nname = "gpu0"', "device 1: rate"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        wiring.read(path, DEVICES)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        wiring.read(tmp_path / "none.toml", DEVICES)
    with pytest.raises(ConfigError, match="want an absolute path"):
        wiring.read(Path("topology.toml"), DEVICES)
