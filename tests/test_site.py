"""What the site of the documentation is made of, and how its faults are found.

``tests/web/test_site.py`` builds it and searches it.
"""

import re
from pathlib import Path

import pytest

import pulsed
from tools.site import navigation, pages, reference, sources
from tools.site.docstring import markdown
from tools.site.links import problems
from tools.site.pages import ROOT
from tools.site.staging import as_shown


def test_each_page_is_in_the_navigation():
    listed = set().union(*map(navigation.pages, navigation.entries()))
    staged = {
        path.as_posix() for path in [*pages.files(), *reference.titles()] if path.suffix == ".md"
    }
    assert staged == listed, "list it in docs/README.md"


def test_a_link_to_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(pages, "links", lambda page: ["absent.md"])
    with pytest.raises(FileNotFoundError, match=r"README.md links to \S*absent.md, which is not"):
        pages.files()


def test_pages_about_a_folder_have_the_pages_in_there_below_them():
    entry = navigation.entry(Path("examples/README.md"))
    assert isinstance(entry, list)
    assert entry[0] == "examples/README.md"
    assert {"Node": "examples/node/README.md"} in entry


def test_a_linked_file_is_a_page_with_its_text():
    text = as_shown(Path("README.md"), "in [a file](examples/demo_jobs.py)\n")
    assert text == "in [a file](examples/demo_jobs.py.md)\n"
    assert "```python\n" in sources.page(Path("examples/demo_jobs.py"))


def test_a_linked_folder_is_a_page_with_its_files():
    page = sources.page(Path("deploy/kubernetes"))
    assert "- [worker.yaml](worker.yaml.md)\n" in page


def test_pictures_follow_the_switch_of_the_site():
    shown = as_shown(
        Path("docs/models.md"),
        "<!-- run: tests/x.py::test_x -->\n"
        '<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="a-dark.webp">\n'
        '  <img alt="A" src="a-light.webp">\n</picture>\n',
    )
    assert shown == (
        '<img alt="A" src="a-light.webp#only-light">\n<img alt="A" src="a-dark.webp#only-dark">\n'
    )


def test_tables_of_code_become_columns():
    path = Path("docs/from-celery.md")
    shown = as_shown(path, (ROOT / path).read_text("utf-8"))
    assert shown.count('<div class="side-by-side" markdown>') > 5
    assert "<t" not in shown


@pytest.mark.parametrize(
    "fault, problem",
    [
        ('<a href="absent.html">', "index.html links to absent.html, which is not there"),
        (
            '<a href="other.html#absent">',
            "index.html links to other.html#absent, which is not there",
        ),
        ('<a href="../secret">', "index.html links to ../secret, which is not there"),
        ('<img alt="" src="absent.png">', "index.html links to absent.png, which is not there"),
        ('<script src="https://cdn.example/x.js">', "index.html loads https://cdn.example/x.js"),
        (
            '<link rel="stylesheet" href="//cdn.example/x.css">',
            "index.html loads //cdn.example/x.css",
        ),
    ],
)
def test_a_fault_of_a_built_site_is_found(tmp_path, fault, problem):
    site = tmp_path / "site"
    site.mkdir()
    (tmp_path / "secret").touch()
    (site / "other.html").write_text('<h1 id="top">', "utf-8")
    good = '<a href="other.html#top"><a href="https://x.example"><a href="mailto:a@b.example">'
    (site / "index.html").write_text(good + fault, "utf-8")
    assert problems(site) == [problem]


def test_a_style_that_loads_from_another_host_is_found(tmp_path):
    (tmp_path / "a.css").write_text('@import "https://x.example/a.css"; b { src: url(b.png) }')
    assert problems(tmp_path) == ["a.css loads https://x.example/a.css"]


def test_the_reference_has_every_public_name():
    text = "\n".join(text for _, text in reference.pages())
    described = set(re.findall(r"^## (\w+)$", text, re.MULTILINE))
    assert set(pulsed.__all__) - described == {"__version__"}


def test_the_reference_describes_a_method_with_its_async_form():
    [page] = [text for path, text in reference.pages() if path.stem == "jobs"]
    job = page.partition("## Job\n")[2]
    section = job.partition("### result, aresult\n")[2].partition("\n### ")[0]
    assert "def result(timeout: " in section
    assert "await aresult(…)" in section


def test_a_docstring_becomes_markdown():
    text = """Stores ``it``.

        See this::

            a ``b``

        Args:
            name: What it is
                called.
            *rest: More.
        """
    assert markdown(text) == (
        "Stores `it`.\n\nSee this:\n\n```text\na `b`\n```\n\n"
        "**Arguments**\n\n- `name`: What it is called.\n- `*rest`: More."
    )
