"""Docstrings as Markdown: Google's sections, double backquotes and literal blocks."""

import re
from inspect import cleandoc

SECTIONS = {
    "Args": "Arguments",
    "Raises": "Raises",
    "Returns": "Returns",
    "Yields": "Yields",
    "Example": "Example",
    "Examples": "Examples",
}
SECTION = re.compile(rf"^({'|'.join(SECTIONS)}):\n((?:(?:    .*)?\n?)+)", re.MULTILINE)
ITEM = re.compile(r"^(\*{0,2}\w+): ", re.MULTILINE)
QUOTES = re.compile(r"(?<!`)``(?!`)")
LITERAL = re.compile(r"(\S?)::\n\n((?:(?:    .*)?\n)+)")


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown."""
    text = cleandoc(docstring) + "\n"
    text = SECTION.sub(section, text)
    text = LITERAL.sub(literal, text)
    return QUOTES.sub("`", text).strip()


def section(found: re.Match[str]) -> str:
    """Return a section as its title and a list of its items, or its text."""
    title, body = SECTIONS[found[1]], cleandoc(found[2])
    if not ITEM.match(body):
        return f"**{title}**\n\n{body}\n\n"
    items = re.split(r"\n(?=\S)", body)
    lines = (ITEM.sub(r"- ``\1``: ", re.sub(r"\n\s+", " ", item)) for item in items)
    return f"**{title}**\n\n" + "\n".join(lines) + "\n\n"


def literal(found: re.Match[str]) -> str:
    """Return a literal block as a fenced one."""
    introduced = f"{found[1]}:\n\n" if found[1] else ""
    return f"{introduced}```text\n{cleandoc(found[2])}\n```\n\n"
