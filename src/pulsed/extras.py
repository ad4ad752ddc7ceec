"""How to add an extra to this installation: from an index, a clone, a repository, a file."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote, urlsplit


def install_command(extra: str) -> str:
    """Return the ``pip`` command that adds an extra to the installed pulsed."""
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415 - slow

    try:
        written = distribution("pulsed").read_text("direct_url.json")
    except PackageNotFoundError:  # run from its sources
        written = None
    return command_for(extra, json.loads(written) if written else {})


def command_for(extra: str, origin: dict[str, Any]) -> str:
    """Return the command for a package with this ``direct_url.json``; empty: from an index.

    The format is specified at packaging.python.org, "Recording the Direct URL Origin".
    """
    url = str(origin.get("url", ""))
    if not url:
        return f'pip install "pulsed[{extra}]"'
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f'pip install {editable}"{unquote(urlsplit(url).path)}[{extra}]"'
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return f'pip install "pulsed[{extra}] @ {url}"'
