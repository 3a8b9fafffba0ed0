"""A machine's topology: PCIe switches from sysfs, NVLinks from NVML. The libraries are stand-ins; none is a GPU's."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_common.config import ConfigError
from rouse_common.errors import FailedPrecondition
from rouse_gpu_server import topology, wiring
from rouse_gpu_server.adapters import cuda_driver, pci
from rouse_gpu_server.adapters.nvml import End, NvLink
from rouse_gpu_server.logic.machine import connect
from rouse_gpu_server.wiring import Wiring
from rouse_policy.topology import Topology

SOURCE = Path(__file__).with_name("fake_nvidia.c")
FOUR = ("0000:03:00.0", "0000:04:00.0", "0001:83:00.0", "0001:84:00.0")
# The first two below one switch; the others each below a port of their own.
PLACES = (
    "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0",
    "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0",
    "pci0001:80/0001:80:01.0/0001:83:00.0",
    "pci0001:80/0001:80:02.0/0001:84:00.0",
)


def make_sysfs(folder: Path, places: Sequence[str]) -> Path:
    """A sysfs with devices at these places."""
    known = folder / "bus" / "pci" / "devices"
    known.mkdir(parents=True)
    for place in places:
        (folder / "devices" / place).mkdir(parents=True)
        (known / Path(place).name).symlink_to(Path("../../../devices") / place)
    return folder


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Compiles the stand-in."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")

    def make(*flags: str) -> str:
        library = tmp_path_factory.mktemp("fake") / "libfake.so"
        command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", str(library), str(SOURCE)]
        subprocess.run(command, check=True, timeout=120)
        return str(library)

    return make


@pytest.fixture(scope="module")
def library(build: Callable[..., str]) -> str:
    return build()


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    return make_sysfs(tmp_path / "sys", PLACES)


def test_switches_and_links_are_read(library: str, sysfs: Path) -> None:
    machine = topology.read(library, library, sysfs)
    assert dict(machine.addresses) == {f"gpu{number}": address for number, address in enumerate(FOUR)}
    assert machine.topology.switches == (("gpu0", "gpu1"),)
    # Two links between the first, and of three to the switches one is down.
    assert dict(machine.topology.links) == {("gpu0", "gpu1"): 50e9, ("gpu2", "gpu3"): 50e9}
    assert any("NVSwitches are taken for one fabric" in note for note in machine.notes)


def test_what_is_printed_is_the_file_that_gpu_server_takes(
    library: str, sysfs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--driver", library, "--nvml", library, "--sysfs", str(sysfs)]
    assert topology.main(flags) == 0
    assert "gpu0  0000:03:00.0  switch 0  gpu1 50 GB/s\n" in capsys.readouterr().out
    assert topology.main([*flags, "--toml"]) == 0
    file = tmp_path / "topology.toml"
    file.write_text(capsys.readouterr().out)
    read = topology.read(library, library, sysfs)
    assert wiring.read(file, list(read.addresses)).topology == read.topology


def test_without_nvml_switches_are_read_alone(build: Callable[..., str], library: str, sysfs: Path) -> None:
    for management in ("libnothing-of-the-kind.so.1", build("-DNO_NVML")):
        machine = topology.read(library, management, sysfs)
        assert machine.topology == Topology((("gpu0", "gpu1"),), {})
        assert "no NVLinks" in machine.notes[0]


def test_without_a_driver_it_says_so(sysfs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FailedPrecondition, match="install the devices' driver") as raised:
        topology.read("libnothing-of-the-kind.so.1", sysfs=sysfs)
    assert raised.value.reason == "DRIVER_MISSING"
    assert topology.main(["--driver", "libnothing-of-the-kind.so.1"]) == 1
    assert "DRIVER_MISSING" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["init", "count", "address"])
def test_what_the_driver_says_is_checked(
    library: str, sysfs: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAULT", fault)
    with pytest.raises(FailedPrecondition) as raised:
        topology.read(library, library, sysfs)
    assert raised.value.reason == "DRIVER_FAILED"


@pytest.mark.parametrize("fault", ["nvml", "links", "remote"])
def test_what_nvml_says_is_checked(library: str, sysfs: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAULT", fault)
    machine = topology.read(library, library, sysfs)
    assert machine.topology == Topology((("gpu0", "gpu1"),), {})
    assert "no NVLinks" in machine.notes[0]


def test_a_link_whose_rate_is_not_told_is_left_out(library: str, sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAULT", "rates")
    machine = topology.read(library, library, sysfs)
    assert dict(machine.topology.links) == {("gpu0", "gpu1"): 50e9}
    assert "gpu3: the driver does not tell the rate of 2 NVLinks; they are left out" in machine.notes


def test_a_driver_without_devices_is_a_machine_without(
    library: str, sysfs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_FAULT", "no-device")
    assert not topology.read(library, library, sysfs).addresses
    assert topology.main(["--driver", library, "--nvml", library, "--sysfs", str(sysfs)]) == 0
    assert "no CUDA device" in capsys.readouterr().out


def test_a_device_on_the_roots_own_bus_is_behind_no_switch(tmp_path: Path) -> None:
    sysfs = make_sysfs(tmp_path, ["pci0000:00/0000:00:05.0", "pci0000:00/0000:00:06.0"])
    assert pci.switches(["0000:00:05.0", "0000:00:06.0"], sysfs) == ()


def test_a_device_that_sysfs_does_not_have_is_named(tmp_path: Path) -> None:
    sysfs = make_sysfs(tmp_path, PLACES)
    loop = sysfs / "bus" / "pci" / "devices" / "0000:09:00.0"
    loop.symlink_to(loop)
    wrong = sysfs / "bus" / "pci" / "devices" / "0000:08:00.0"
    wrong.symlink_to(sysfs / "devices" / PLACES[0])
    for address in ("0000:07:00.0", "0000:09:00.0", "0000:08:00.0"):
        with pytest.raises(FailedPrecondition, match=address) as raised:
            pci.switches([address], sysfs)
        assert raised.value.reason == "PCI_DEVICE_UNKNOWN"


@given(st.integers(0, 0xFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7), st.booleans())
def test_addresses_are_written_as_in_sysfs(domain: int, bus: int, device: int, function: int, wide: bool) -> None:
    text = (
        f"{domain:08X}:{bus:02X}:{device:02X}.{function}" if wide else f"{domain:04x}:{bus:02x}:{device:02x}.{function}"
    )
    assert pci.address(text) == f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


@given(st.text(max_size=20))
def test_what_is_no_address_is_refused(text: str) -> None:
    try:
        found = pci.address(text)
    except ValueError:
        return
    assert pci.address(found) == found


links = st.lists(
    st.builds(
        NvLink,
        st.sampled_from(list(End)),
        st.sampled_from([*FOUR, "0000:99:00.0", ""]),
        st.sampled_from([None, 1e9, 25e9]),
    ),
    max_size=6,
)


@given(st.fixed_dictionaries(dict.fromkeys(FOUR, links)), st.booleans())
def test_no_pair_has_more_than_either_of_its_devices(found: dict[str, list[NvLink]], shared: bool) -> None:
    addresses = {f"gpu{number}": address for number, address in enumerate(FOUR)}
    machine = connect(addresses, [FOUR[:2]] if shared else [], found)
    for (one, other), rate in machine.topology.links.items():
        assert 0 < rate <= min(sum(link.bytes_s or 0 for link in found[addresses[name]]) for name in (one, other))
    written = Wiring(machine.topology, (None,) * len(machine.topology.switches))
    assert wiring.parse(tomllib.loads(wiring.write(written)), list(addresses)) == written


def test_devices_that_the_driver_does_not_show_are_named(library: str) -> None:
    cuda_driver.check([], "libnothing-of-the-kind.so.1")
    cuda_driver.check(["a", "b", "c", "d"], library)
    with pytest.raises(ConfigError, match="--device=cuda:e: 5 are asked for, and the driver shows 4"):
        cuda_driver.check(["a", "b", "c", "d", "e"], library)
    with pytest.raises(ConfigError, match=r"cuda:a: .*install the devices' driver"):
        cuda_driver.check(["a"], "libnothing-of-the-kind.so.1")
