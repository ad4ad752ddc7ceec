"""Scripts of other projects: unchanged, with their licences, and part of what users install."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VENDOR = ROOT / "src/pulsed/web/static/vendor"
OF_THE_DOCS = ROOT / "tools/site/vendor"


def listed(folder: Path = VENDOR) -> dict[str, str]:
    """The checksum of each file, as the list has it."""
    lines = (folder / "checksums.txt").read_text(encoding="utf-8").splitlines()
    entries = (line.split() for line in lines if not line.startswith("#"))
    return {name: digest for digest, name, _package, _path in entries}


@pytest.mark.parametrize("folder", [VENDOR, OF_THE_DOCS], ids=["dashboard", "docs"])
def test_the_files_are_the_listed_ones(folder: Path):
    found = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.iterdir()
        if file.name != "checksums.txt"
    }
    assert found == listed(folder)


@pytest.mark.parametrize("folder", [VENDOR, OF_THE_DOCS], ids=["dashboard", "docs"])
def test_each_script_has_its_licence_beside_it(folder: Path):
    for name in listed(folder):
        assert (folder / f"{name.split('.')[0]}.LICENSE").exists(), name


def test_a_wheel_has_them(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"pulsed/web/static/vendor/{name}" for name in listed()} <= names
    assert [name for name in names if name.endswith(".webp")] == []  # the pictures of the docs
    licences = {name.rsplit("/", 1)[-1] for name in names if ".dist-info/licenses/" in name}
    assert licences == {"LICENSE", *(name for name in listed() if name.endswith(".LICENSE"))}
