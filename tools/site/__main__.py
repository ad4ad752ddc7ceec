"""Builds the site into site/, or says what is wrong with it."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.site.links import problems
from tools.site.pages import ROOT
from tools.site.staging import stage


def build(target: Path) -> list[str]:
    """Build the site into a folder, replacing what is there; return what is wrong with it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        try:
            stage(folder)
        except FileNotFoundError as missing:
            return [str(missing)]
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            return [(done.stdout + done.stderr).partition("\nTraceback")[0]]
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(folder / "site", target)
    return problems(target)


def main(arguments: list[str]) -> None:
    """Build the site, and say where it is."""
    if arguments:
        sys.exit("docs takes no arguments")
    target = ROOT / "site"
    found = build(target)
    if found:
        sys.exit("\n".join(found))
    print(f"the site is ready: {target / 'index.html'}")


if __name__ == "__main__":
    main(sys.argv[1:])
