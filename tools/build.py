"""Build the distributions into dist/, check them, and try the wheel; run by ``dev.py build``.

The wheel is made from the source distribution, so that one which lacks a file does not pass.
"""

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from packaging.metadata import Metadata
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "pulsed"
FOREIGN = ("tests", "benchmarks", "examples", "docs", "tools", "dev.py", ".venv", ".browser")
"""What no distribution has."""
LARGEST = 3_000_000
"""Bytes of a distribution; more is a file that does not belong there."""


def build(folder: Path) -> tuple[Path, Path]:
    """Build into ``folder``; returns the wheel and the source distribution."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def packaged() -> set[str]:
    """Return every file of the package, as a wheel names it."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(PACKAGE.parent).as_posix() for path in files}


def problems_of(wheel: Path, source: Path, tag: str | None = None) -> list[str]:
    """Return what is wrong with the distributions; empty if nothing is."""
    with zipfile.ZipFile(wheel) as zipped:
        in_wheel = [name for name in zipped.namelist() if not name.endswith("/")]
        (about,) = [name for name in in_wheel if name.endswith(".dist-info/METADATA")]
        metadata = Metadata.from_email(zipped.read(about), validate=True)  # raises if invalid
    with tarfile.open(source) as tar:
        in_source = [name.partition("/")[2] for name in tar.getnames()]
    sizes = [
        f"{path.name} is too large" for path in (wheel, source) if path.stat().st_size > LARGEST
    ]
    return [
        *sizes,
        *_missing("the wheel", packaged(), in_wheel),
        *_missing("the source", {f"src/{name}" for name in packaged()}, in_source),
        *_missing("the source", {"README.md", "CHANGELOG.md", "LICENSE"}, in_source),
        *_foreign("the wheel", in_wheel, allowed={"pulsed", about.partition("/")[0]}),
        *_foreign("the source", in_source),
        *_metadata_problems(metadata, tag),
    ]


def _missing(what: str, wanted: Collection[str], found: Collection[str]) -> list[str]:
    return [f"{what} lacks {name}" for name in sorted(set(wanted) - set(found))]


def _foreign(what: str, found: Collection[str], allowed: Collection[str] = ()) -> list[str]:
    tops = {PurePosixPath(name).parts[0] for name in found if name}
    wrong = [top for top in tops if top in FOREIGN or (allowed and top not in allowed)]
    return [f"{what} has {top}" for top in sorted(wrong)]


def _metadata_problems(metadata: Metadata, tag: str | None) -> list[str]:
    found = []
    if metadata.description_content_type != "text/markdown" or not metadata.description:
        found.append("the description is not the README")
    if metadata.requires_python is None or not metadata.license_expression:
        found.append("the metadata lacks Requires-Python or License-Expression")
    if tag is not None and tag != f"v{metadata.version}":
        found.append(f"the tag {tag} is not v{metadata.version}, the version of the package")
    if tag is not None and Version(tag.removeprefix("v")).is_devrelease:
        found.append(f"{tag} is not a version to publish")
    return found


def try_out(wheel: Path) -> None:
    """Install the wheel alone into a fresh environment, and run the command there."""
    with tempfile.TemporaryDirectory(prefix="pulsed-build-") as folder:
        venv.EnvBuilder(with_pip=True, symlinks=sys.platform != "win32").create(folder)
        scripts = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin")
        python, pulsed = str(scripts / "python"), str(scripts / "pulsed")
        for command in (
            [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", str(wheel)],
            [python, "-m", "pip", "check", "-q", "--disable-pip-version-check"],
            [python, "-c", "import pulsed"],
            [pulsed, "--version"],
            [pulsed, "init", "shop"],
            [pulsed, "migrate", "up", "--url", f"sqlite:///{folder}/jobs.db"],
        ):
            subprocess.run(command, cwd=folder, check=True)


def main(arguments: list[str]) -> None:
    """Build, check and try; exits with 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="dev.py build", description=__doc__)
    parser.add_argument("--tag", help="the tag of the release, which must be vVERSION")
    given = parser.parse_args(arguments)
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    wheel, source = build(folder)
    if problems := problems_of(wheel, source, given.tag):
        sys.exit("\n".join(problems))
    try_out(wheel)
    for path in (wheel, source):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1024:,.0f} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
