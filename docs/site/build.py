"""The site: `make site` makes build/site from docs/, the zoo's plans, three notebooks and the catalogue of refusals.

(1) Pages of docs/ are copied as they are; README.md becomes index.md, its links without `docs/`.
(2) Each committed plan gets a page with the pictures that `edbc explain` draws, its model run on one mini-batch; the
    gallery shows the schedule of each.
(3) Each refusal's code gets a page of its own, from the table that `edbc explain E0401` reads.
(4) Notebooks run while the site is built; one that raises fails the build, as does a link that leads nowhere.

`--quick` explains plans without running their models.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from edbc.plan.reader import read_plan
from edbc.refusals import table
from edbc.tools.explain.drawings import schedule_row
from edbc.tools.explain.explanation import Explanation, explain_file
from edbc.tools.explain.page import colour, explanation_fragment

ROOT = Path(__file__).resolve().parents[2]
PAGES, SITE = ROOT / "build" / "site-pages", ROOT / "build" / "site"
LANES = 6
"""Types of a model that its card shows."""


def main(quick: bool = False) -> None:
    """Make every page, then the site."""
    shutil.rmtree(PAGES, ignore_errors=True)
    copy_docs()
    zoo = [write_plan_page(path, quick) for path in sorted((ROOT / "plans").glob("*.yaml"))]
    write_gallery(zoo)
    errors = list(write_errors())
    config = yaml.safe_load((ROOT / "docs" / "site" / "mkdocs.yml").read_text())
    config["nav"] += [{"Zoo": ["zoo/index.md", *(f"zoo/{path.stem}.md" for path, _ in zoo)]}]
    config["nav"] += [{"Errors": ["errors/index.md", *errors]}]
    config |= {"docs_dir": str(PAGES), "site_dir": str(SITE)}
    made = PAGES.parent / "mkdocs.yml"
    made.write_text(yaml.safe_dump(config, sort_keys=False))
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--clean", "--config-file", str(made)], check=True, cwd=PAGES.parent
    )


def copy_docs() -> None:
    """Definition (1)."""
    shutil.copytree(ROOT / "docs", PAGES, ignore=shutil.ignore_patterns("site", "errors.md", ".ipynb_checkpoints"))
    shutil.copy(ROOT / "docs" / "site" / "site.css", PAGES)
    readme = re.sub(r"\]\(docs/", "](", (ROOT / "README.md").read_text())
    (PAGES / "index.md").write_text(readme.replace('src="docs/', 'src="'))
    for page in PAGES.rglob("*.md"):
        text = page.read_text().replace("](errors.md)", "](errors/index.md)").replace("](../README.md", "](index.md")
        page.write_text(text)


def write_plan_page(path: Path, quick: bool) -> tuple[Path, Explanation]:
    """Definition (2)."""
    print(f"zoo: {path.stem}", flush=True)
    explanation = explain_file(path, run=not quick)
    fragment = explanation_fragment(explanation).replace("<main", "<div").replace("</main>", "</div>")
    fragment = re.sub(r"\n\s*\n", "\n", fragment).replace("<h1>", "<p hidden>").replace("</h1>", "</p>")
    source = path.parent / read_plan(path).model.path
    summary = source.read_text().split('"""')[1].splitlines()[0]
    target = PAGES / "zoo" / f"{path.stem}.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text(f"# {path.stem}\n\n{summary}\n\n{fragment}\n")
    return path, explanation


def write_gallery(zoo: list[tuple[Path, Explanation]]) -> None:
    """A card per model: its schedule, one lane per type, one bar per batch."""
    cards = [_card(path, explanation) for path, explanation in zoo]
    text = (
        "One column is a batch, its height the nodes that run together, of one mini-batch of 32 instances; of models "
        "that read values, of what runs before the first value is read."
    )
    gallery = "\n".join(cards)
    (PAGES / "zoo" / "index.md").write_text(f'# The zoo\n\n{text}\n\n<div class="gallery">\n{gallery}\n</div>\n')


def _card(path: Path, explanation: Explanation) -> str:
    observed, lanes = explanation.observed, ""
    if observed is not None:
        sizes = [(step.kind, step.size) for step in observed.steps]
        kinds = list(dict.fromkeys(kind for kind, _ in sizes))[:LANES]
        names = [node_type.name for node_type in observed.types]
        lanes = "".join(schedule_row(sizes, kind, len(sizes), colour(kind), names[kind]) for kind in kinds)
        told = f"{observed.num_nodes:,} nodes in {len(observed.steps)} batches, at least {observed.lower_bound}"
    else:
        told = ", ".join(f"{name} {count}" for name, count in list(explanation.comparison.items())[:2])
    return f'<a href="{path.stem}.html"><b>{path.stem}</b><br><small>{told}</small>{lanes}</a>'


def write_errors() -> Iterator[str]:
    """Definition (3); gives the pages' names."""
    folder = PAGES / "errors"
    folder.mkdir()
    rows = [f"| [{entry.code}]({entry.code}.md) | {entry.title} | `{entry.kind}` |" for entry in table()]
    head = "# Errors\n\nEvery refusal has a code. `edbc explain E0401` shows the same in a terminal.\n\n"
    (folder / "index.md").write_text(head + "| code | what it says | class |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    for entry in table():
        (folder / f"{entry.code}.md").write_text(entry.markdown().replace("## ", "# ", 1))
        yield f"errors/{entry.code}.md"


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
