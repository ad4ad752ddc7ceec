"""Which browser tests use, and how one is fetched."""

import contextlib
import platform
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tools import browser
from tools.browser import AXE, CHROMIUM, BrowserError, axe_script, fetched, find_chromium


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a browser and without a registry; programs can be put into the folder."""
    monkeypatch.setattr(browser, "HOME", tmp_path / ".browser")
    monkeypatch.setattr(browser, "APPLICATIONS", ())
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.delenv("PULSED_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:1/")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    return tmp_path


def program(path: Path, code: int = 0) -> Path:
    path.write_text(f"#!/bin/sh\nexit {code}\n")
    path.chmod(0o755)
    return path


def test_the_one_that_was_asked_for_comes_first(bare, monkeypatch):
    program(bare / "chromium")
    asked = program(bare / "my-chromium")
    monkeypatch.setenv("PULSED_CHROMIUM", str(asked))
    assert find_chromium().path == asked


def test_one_that_was_asked_for_must_exist(bare, monkeypatch):
    program(bare / "chromium")
    monkeypatch.setenv("PULSED_CHROMIUM", "/nowhere/chromium")
    with pytest.raises(BrowserError, match="PULSED_CHROMIUM is '/nowhere/chromium', which is not"):
        find_chromium()


def test_the_systems_comes_second_if_it_starts(bare):
    program(bare / "chromium", code=1)
    works = program(bare / "google-chrome")
    assert find_chromium().path == works


def test_without_any_the_error_says_what_to_do(bare):
    with pytest.raises(BrowserError) as raised:
        find_chromium()
    assert "npm cannot fetch @sparticuz/chromium" in str(raised.value)
    assert "Install Chromium or Chrome" in str(raised.value)
    assert "PULSED_CHROMIUM" in str(raised.value)
    assert {path.name for path in browser.HOME.iterdir()} == {"lock"}


def test_where_the_package_does_not_run_the_error_says_what_to_do(bare, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(BrowserError, match="Install Chromium or Chrome"):
        find_chromium()


def test_axe_that_cannot_be_fetched_is_an_error(bare):
    with pytest.raises(BrowserError, match="npm cannot fetch axe-core"):
        axe_script()


def test_an_archive_with_another_checksum_is_refused(tmp_path):
    archive = tmp_path / "package.tgz"
    archive.write_bytes(b"something else")
    with pytest.raises(BrowserError, match=r"axe-core 4.* has been changed"):
        browser.verified(archive, AXE)


class Registry:
    """Hands out an archive, and counts how often."""

    def __init__(self) -> None:
        self.downloads = 0
        self.lock = threading.Lock()

    def download(self, _package: browser.Package, scratch: Path) -> Path:
        with self.lock:
            self.downloads += 1
        archive = scratch / "package.tgz"
        archive.write_bytes(b"")
        return archive


@pytest.fixture
def registry(bare, monkeypatch) -> Registry:
    registry = Registry()
    monkeypatch.setattr(browser, "download", registry.download)
    return registry


def unpack(_archive: Path, folder: Path) -> None:
    (folder / "file").write_text("content")


def test_processes_at_once_fetch_once(registry):
    both = threading.Barrier(2)

    def unpack_together(archive: Path, folder: Path) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.1)  # in vain: the other one waits for the lock
        unpack(archive, folder)

    with ThreadPoolExecutor(2) as pool:
        homes = set(pool.map(lambda _: fetched(AXE, unpack_together), range(2)))
    assert homes == {AXE.home}
    assert (both.broken, registry.downloads) == (True, 1)
    assert (AXE.home / "file").read_text() == "content"


def test_an_interrupted_fetch_leaves_nothing(registry):
    def fail(archive: Path, folder: Path) -> None:
        unpack(archive, folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetched(AXE, fail)
    assert {path.name for path in browser.HOME.iterdir()} == {"lock"}
    fetched(AXE, unpack)
    assert registry.downloads == 2


def test_a_new_version_replaces_the_old_one(registry):
    fetched(replace(AXE, version="1.0"), unpack)
    fetched(CHROMIUM, unpack)
    fetched(AXE, unpack)
    kept = {path.name for path in browser.HOME.iterdir()}
    assert kept == {"lock", AXE.home.name, CHROMIUM.home.name}


def test_axe_is_fetched_whole():
    assert "axe.run" in axe_script().read_text("utf-8")
    assert (axe_script().parent / "LICENSE").exists()
