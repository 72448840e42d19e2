"""Make the site of the documentation: the repository's pages as they are, and a reference that the code writes.

    make site                                   into build/docs/site; a link or a heading that is not there fails
    python docs/make_site.py --pages-only       the pages and the map, without the site

`docs/index.md` is the map: its headings are the parts, and its lists say which page stands where. A page that no list
names stands in the last parts. Links between pages are those of the repository, and lead the same way on the site.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import reference

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "docs"
#: What the pages link to, besides docs/.
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "benchmarks", "examples")
PROGRAMS = ("make_site.py", "reference.py", "choosing_page.py", "openapi_changes.py")
IGNORED = shutil.ignore_patterns("__pycache__", "*.jsonl", *PROGRAMS)
#: Where pages stand that the index names nowhere, by how their paths begin.
LAST_PARTS = {"Decisions": "docs/decisions/", "Benchmarks": "benchmarks/", "More": ""}
STRICT = {"invalid_links": True, "invalid_link_anchors": True}


def nav(index: str, titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the map of the site: every page of `titles` (paths to headings), where the `index` lists it first."""
    left = dict(titles)
    parts: list[dict[str, Any]] = [{"Wiretune": "README.md"}, {"Start here": "docs/index.md"}]
    for page in ("README.md", "docs/index.md"):
        left.pop(page)
    for part, listed in _parts(index):
        chosen = {page: name for name, page in listed if page in left}
        if part == "Reference":
            chosen |= {page: title for page, title in left.items() if page.startswith("docs/reference/")}
        parts.append({part: [{name: page} for page, name in chosen.items()]})
        left = {page: title for page, title in left.items() if page not in chosen}
    for part, prefix in LAST_PARTS.items():
        parts.append({part: [{title: page} for page, title in left.items() if page.startswith(prefix)]})
        left = {page: title for page, title in left.items() if not page.startswith(prefix)}
    return [part for part in parts if all(part.values())]


def _parts(index: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield each part of the index that has a list, with the names and pages of the list's links."""
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        part, _, text = section.partition("\n")
        items = re.findall(r"^ *(?:-|\d+\.) .*$", text, flags=re.MULTILINE)
        links = [link for item in items for link in re.findall(r"\[([^\]]+)\]\(([^)#\s]+\.md)(?:#[^)]*)?\)", item)]
        if links:
            yield part, [(_plain(name), _from_root(page)) for name, page in links]


def _plain(title: str) -> str:
    name = title.replace("`", "")
    return name[:1].upper() + name[1:]


def _from_root(page: str) -> str:
    return str((ROOT / "docs" / page).resolve().relative_to(ROOT))


def write_pages(folder: Path) -> dict[str, str]:
    """Write the pages below the empty `folder`, and return their headings by their paths."""
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=IGNORED)
    for name in BESIDE:
        copy = shutil.copy if (ROOT / name).is_file() else lambda *paths: shutil.copytree(*paths, ignore=IGNORED)
        copy(ROOT / name, folder / name)
    document = json.loads((ROOT / "docs" / "openapi.json").read_text())
    for name, lines in reference.pages(document).items():
        path = folder / "docs" / "reference" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(reference.text(lines))
    return {str(page.relative_to(folder)): _heading(page.read_text()) for page in sorted(folder.rglob("*.md"))}


def _heading(text: str) -> str:
    found = re.search(r"^# (.+)$", text, flags=re.MULTILINE)
    return _plain(found[1]) if found else "Untitled"


def config(titles: Mapping[str, str]) -> dict[str, Any]:
    """Return Zensical's configuration, which reads that of MkDocs; JSON is YAML, too."""
    options = {"show_root_heading": False, "show_root_toc_entry": False, "show_source": False, "heading_level": 3}
    return {
        "site_name": "Wiretune",
        "docs_dir": "pages",
        "site_dir": "site",
        "use_directory_urls": False,  # the pages open from a folder as well
        "nav": nav((ROOT / "docs" / "index.md").read_text(), titles),
        "validation": STRICT,
        "theme": {"features": ["navigation.tabs", "navigation.top", "search.highlight"], "font": False},
        "plugins": ["search", {"mkdocstrings": {"handlers": {"python": {"paths": [str(ROOT)], "options": options}}}}],
    }


def make(pages_only: bool) -> int:
    """Make pages and site anew; return the exit status of the site's generator."""
    shutil.rmtree(BUILD, ignore_errors=True)
    titles = write_pages(BUILD / "pages")
    (BUILD / "mkdocs.yml").write_text(json.dumps(config(titles), indent=1))
    if pages_only:
        return 0
    program = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    return subprocess.run(program, cwd=BUILD, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages-only", action="store_true")
    sys.exit(make(parser.parse_args().pages_only))


if __name__ == "__main__":
    main()
