"""Pages of the site that are outside docs/: README as its home, CONTRIBUTING, and the result files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, and each result file that a link may lead to."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for path in sorted((ROOT / "workflows/results").glob("*.json")):
        name = str(path.relative_to(ROOT))
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead links of a checkout to where the files are in the site."""
    markdown = re.sub(r"\]\((?:\.\./|docs/)", "](", markdown)
    return re.sub(r"\]\((README|CONTRIBUTING)\.md", lambda found: f"]({PAGES[f'{found[1]}.md']}", markdown)
