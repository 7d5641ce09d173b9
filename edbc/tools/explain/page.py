"""An explanation as one page: HTML, CSS and inline SVG, nothing from the network, no script.

Every text from the plan or the model is escaped. Pictures scale with the page; labels are HTML beside them, so that
they stay readable on a phone. Colours follow the reader's light or dark preference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from edbc.tools.explain.drawings import machine, schedule_row
from edbc.tools.explain.explanation import FIGURES, STATES_SAY, Explanation
from edbc.tools.explain.layouts import CellLayout
from edbc.tools.report.figures import count, share

STYLE = """
.edbc{--bg:#fff;--fg:#1c1e21;--soft:#5d646e;--line:#d8dce2;--panel:#f5f6f8;--bad:#c4314b;--l:45%;
 color:var(--fg);background:var(--bg);font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1rem;
 overflow-wrap:anywhere}
@media (prefers-color-scheme:dark){.edbc{--bg:#15181c;--fg:#e6e8eb;--soft:#9aa3ae;--line:#343a42;--panel:#1e2329;
 --bad:#ff7a90;--l:62%}}
.edbc h1{font-size:1.5rem;margin:.2rem 0}.edbc h2{font-size:1.15rem;margin:2rem 0 .5rem}
.edbc h3{font-size:1rem;margin:1.2rem 0 .3rem}.edbc p{margin:.4rem 0}.edbc .soft{color:var(--soft)}
.edbc code,.edbc td,.edbc .var{font-family:ui-monospace,monospace;font-size:.85em}
.edbc .cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.6rem;margin:1rem 0}
.edbc .card{background:var(--panel);border-radius:.5rem;padding:.6rem .8rem}
.edbc .card b{display:block;font-size:1.5rem;line-height:1.2}
.edbc .scroll{overflow-x:auto;background:linear-gradient(90deg,var(--bg) 30%,transparent) 0 0/3rem 100% no-repeat local,
 linear-gradient(-90deg,var(--bg) 30%,transparent) 100% 0/3rem 100% no-repeat local,
 linear-gradient(90deg,var(--line),transparent) 0 0/1rem 100% no-repeat scroll,
 linear-gradient(-90deg,var(--line),transparent) 100% 0/1rem 100% no-repeat scroll}
.edbc .role{white-space:nowrap;margin-right:.8rem;font-size:.85rem}
.edbc table{border-collapse:collapse;width:100%}
.edbc th,.edbc td{text-align:right;padding:.25rem .5rem;border-bottom:1px solid var(--line);white-space:nowrap}
.edbc th{font-size:.8rem;color:var(--soft);font-weight:600}
.edbc th.text,.edbc td.text{text-align:left}
.edbc .dot{display:inline-block;width:.7em;height:.7em;border-radius:50%;margin-right:.4em}
.edbc .lane{display:grid;grid-template-columns:9rem 1fr;gap:.5rem;align-items:center;margin:2px 0}
.edbc .lane span{font:.8rem ui-monospace,monospace;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.edbc svg{display:block}.edbc .lane svg{width:100%;height:1.6rem;background:var(--panel)}
.edbc .lane b{float:right;font-weight:600}@media (max-width:30rem){.edbc .lane{grid-template-columns:5rem 1fr}
 .edbc .lane.wide{grid-template-columns:8rem 1fr}}
.edbc .bar{background:var(--panel);height:1.1rem;position:relative}.edbc .bar i{display:block;height:100%}
.edbc .machine{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(20rem,100%),1fr));gap:1rem}
.edbc .strip{display:grid;gap:2px;align-items:center;width:max-content;margin:.2rem 0 .8rem}
.edbc .strip .var{border:1px solid var(--line);text-align:center;padding:0 .25rem;background:var(--bg)}
.edbc .strip .mark{height:.5rem;border-radius:2px}
.edbc .strip .away{outline:2px solid var(--bad);outline-offset:-1px}
.edbc .strip .what{font-size:.75rem;color:var(--soft);padding-right:.5rem;white-space:nowrap;position:sticky;left:0;
 background:var(--bg)}
.edbc .arrow{fill:var(--soft)}.edbc .move{stroke:var(--soft);fill:none}.edbc .number{fill:var(--bg);font-weight:600}
"""
ROLES = {"result": 0, "inputs": 2, "operand 1": 4, "operand 2": 5, "operand 3": 3}
"""Numbers of the colours of operands in a strip of memory; none is near the frame's red."""
LAST_ROLE = 8
STATES = 40
"""States in the table of the page."""
DRAWN = 16
"""States in the drawing."""


def explanation_page(explanation: Explanation) -> str:
    """The whole page."""
    return page_of(f"{explanation.name}: how it batches", _body(explanation))


def page_of(title: str, body: str) -> str:
    """A page with a title and sections, in the one style."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>body{{margin:0}}"
        "@media (prefers-color-scheme:dark){body{background:#15181c}}</style></head><body>"
        f"{styled(body)}</body></html>\n"
    )


def explanation_fragment(explanation: Explanation) -> str:
    """The page without its head, for notebooks."""
    return styled(_body(explanation))


def _body(explanation: Explanation) -> str:
    sections = [_head, _schedules, _types, _apart, _policies, _machine, _layouts, _times]
    return "\n".join("".join(section(explanation)) for section in sections)


def styled(body: str) -> str:
    """A body in the one style."""
    return f'<style>{STYLE}</style><main class="edbc">{body}</main>'


def cards(figures: Iterable[tuple[str, str]]) -> str:
    """Large figures with a line of words each."""
    inner = "".join(f'<div class="card"><b>{escape(big)}</b>{escape(small)}</div>' for big, small in figures)
    return f'<div class="cards">{inner}</div>'


def lane(name: str, bars: Iterable[tuple[float, float, str, str]], width: int) -> str:
    """A named row of bars: where each begins, its width, colour and title."""
    inner = "".join(
        f'<rect x="{x:.2f}" y="2" width="{wide:.2f}" height="20" fill="{fill}"><title>{escape(title)}</title></rect>'
        for x, wide, fill, title in bars
    )
    picture = f'<svg viewBox="0 0 {width} 24" preserveAspectRatio="none" role="img" aria-label="{escape(name)}">'
    return f'<div class="lane"><span>{escape(name)}</span>{picture}{inner}</svg></div>'


def colour(kind: int) -> str:
    """A type's colour: hues a golden angle apart, lightness by the reader's preference."""
    return f"hsl({(205 + kind * 137) % 360} 65% var(--l))"


def _head(e: Explanation) -> Iterator[str]:
    yield f"<h1>{escape(e.name)}</h1>"
    if e.model_text:
        yield f'<p class="soft">{escape(e.model_text)}</p>'
    if e.observed is not None:
        o = e.observed
        batches = len(o.steps)
        yield f"<p>One mini-batch: {escape(o.source)}, back end {escape(o.backend)}.</p>"
        figures = [
            (f"{o.num_nodes:,}", "nodes, which eager PyTorch runs one by one"),
            (f"{batches:,}", "batches under this plan"),
            (f"{o.lower_bound:,}", "batches at least, in any schedule"),
            (f"{o.num_nodes / max(batches, 1):.1f}", "nodes per batch"),
        ]
        if e.plan.policy.kind == "fsm":
            figures.append((share(o.table_steps, batches), "of the batches chosen by the table"))
        yield cards(figures)
    for note in e.notes:
        yield f"<p><b>Note:</b> {escape(note)}</p>"


def _schedules(e: Explanation) -> Iterator[str]:
    """The plan's schedule and the usual ones on one scale, so that the shorter picture is the gain."""
    if e.observed is None or not e.observed.steps:
        return
    o = e.observed
    own = [(step.kind, step.size) for step in o.steps]
    shown: list[tuple[str, Sequence[tuple[int, int]]]] = [("this plan", own)]
    shown += [(f"{kind} policy", o.schedules[kind]) for kind in ("agenda", "depth") if kind in o.schedules]
    most = max(len(batches) for _, batches in shown)
    yield "<h2>The schedule</h2><p>Time runs to the right, one column per batch, the same scale in every picture. A row"
    yield " is a type; the height of a column says how many nodes run at once. Space on the right is gained.</p>"
    names = _names(e)
    for title, batches in shown:
        yield f"<h3>{escape(title)}: {count(len(batches), 'batch', 'batches')}</h3>"
        for kind in sorted({k for k, _ in batches}):
            picture = schedule_row(batches, kind, most, colour(kind), names[kind])
            yield f'<div class="lane"><span title="{escape(names[kind])}">{escape(names[kind])}</span>{picture}</div>'


def _names(e: Explanation) -> list[str]:
    return [t.name for t in e.observed.types] if e.observed is not None else [t.name for t in e.types]


def _types(e: Explanation) -> Iterator[str]:
    yield "<h2>What batches together</h2><p>Nodes of one type, whatever instance they come from. <i>Least</i> is the"
    yield " longest chain of nodes that wait for each other: no schedule needs fewer batches.</p>"
    names = _names(e)
    header = ["type", *(FIGURES if e.observed is not None else ()), "from"]
    rows = []
    for facts in e.types:
        figures = e.figures(facts) if e.observed is not None else []
        rows.append([_with_dot(facts.name, names), *map(escape, figures), escape(facts.source)])
    yield table_html(header, rows, text=(0, len(header) - 2, len(header) - 1))
    for facts in e.types:
        source = f" from {escape(facts.source)}" if facts.source else ""
        yield f"<p><b>{escape(facts.name)}</b>{source}<br><code>{escape(facts.signature)}</code>"
        yield f"<br><span class=soft>{escape(facts.generic_text)}</span></p>" if facts.generic else "</p>"


def _with_dot(name: str, names: Sequence[str]) -> str:
    """A type's name behind a dot of its colour."""
    kind = names.index(name) if name in names else 0
    return f'<i class="dot" style="background:{colour(kind)}"></i>{escape(name)}'


def table_html(header: Sequence[str], rows: Iterable[Sequence[str]], text: Sequence[int]) -> str:
    """Cells of `rows` are HTML; columns of `text` are flush left."""

    def line(cells: Sequence[str], tag: str) -> str:
        inner = "".join(f"<{tag}{' class=text' if i in text else ''}>{cell}</{tag}>" for i, cell in enumerate(cells))
        return f"<tr>{inner}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table>{line(list(map(escape, header)), "th")}{body}</table></div>'


def _apart(e: Explanation) -> Iterator[str]:
    yield "<h2>What does not, although it is close</h2>"
    if not e.apart:
        yield "<p>Nothing: no two types are nearly equal.</p>"
    for d in e.apart:
        yield f"<p><b>{escape(d.names)}</b>: {escape(d.reason)}.</p>"


def _policies(e: Explanation) -> Iterator[str]:
    figures = e.comparison
    if not figures:
        return
    where = "on this mini-batch" if e.observed is not None else "when it was compiled"
    yield f"<h2>Policies compared</h2><p>Batches {where}.</p>"
    most = max(*figures.values(), 1)
    for name, value in figures.items():
        fill = colour(0) if name == "this plan" else "var(--soft)"
        yield f'<div class="lane wide"><span><b>{value:,}</b>{escape(name)}</span>'
        yield f'<div class="bar"><i style="width:{100 * value / most:.1f}%;background:{fill}"></i></div></div>'


def _machine(e: Explanation) -> Iterator[str]:
    policy = e.plan.policy
    yield "<h2>The state machine</h2>"
    if not e.states:
        yield f"<p>None: the fixed rule <code>{escape(policy.kind)}</code> chooses every batch.</p>"
        return
    yield f"<p>{count(len(e.states), 'state')} over <code>{escape(policy.encoding or '')}</code>; in a state that it"
    yield f" lacks <code>{escape(policy.fallback)}</code> chooses."
    yield f" Here {STATES_SAY.get(policy.encoding or '', '')}.</p>"
    names = _names(e)
    rows = [
        [str(s.number), escape(s.state), _with_dot(s.action, names), "" if s.visits is None else f"{s.visits:,}"]
        for s in e.states[:STATES]
    ]
    yield '<div class="machine">'
    if e.observed is not None:
        numbers = {s.state: s.number for s in e.states}
        moves = {(numbers.get(a, 0), numbers.get(b, 0)): n for (a, b), n in e.observed.transitions.items()}
        drawn = [
            (s.number, colour(names.index(s.action)), f"{s.state}: {s.action}") for s in e.states[:DRAWN] if s.visits
        ]
        drawing = machine(drawn, {k: n for k, n in moves.items() if 0 not in k and max(k) <= DRAWN})
        yield f"<div>{drawing}<p class=soft>Numbers are the table's; thicker arrows were taken more often.</p></div>"
    yield table_html(["", "state", "runs", "visits"], rows, text=(1, 2)) + "</div>"
    if len(e.states) > STATES:
        yield f"<p>... {len(e.states) - STATES:,} more states in the plan.</p>"


def _layouts(e: Explanation) -> Iterator[str]:
    yield "<h2>Memory of each cell</h2><p>A box is a variable, in memory order; under it what each batch reads and"
    yield " writes at once. An operand in a frame is out of place: it is copied, or the batch runs in parts.</p>"
    yield "<p>"
    for role in ROLES:
        yield f'<span class="role"><i class="dot" style="background:{colour(ROLES[role])}"></i>{role}</span> '
    yield "</p>"
    for names, layout in e.distinct_layouts:
        yield f"<h3>{escape(names)}</h3><p>{count(layout.num_operations, 'operation')} in "
        yield f"{count(len(layout.batches), 'batch', 'batches')}; operands out of place: "
        yield f"{layout.misplaced_before} before, {layout.misplaced_after} after; "
        yield f"{count(layout.copies, 'copy', 'copies')} left</p>"
        if layout.split_text:
            yield f"<p>Split: {escape(layout.split_text)}, where that pays.</p>"
        if any(batch.operands for batch in layout.batches):
            yield f'<div class="soft">in the order of the code</div>{_strip(layout, layout.before, is_after=False)}'
            yield f'<div class="soft">in the plan\'s order</div>{_strip(layout, layout.after, is_after=True)}'


def _strip(layout: CellLayout, order: Sequence[str], *, is_after: bool) -> str:
    column = {name: i + 2 for i, name in enumerate(order)}
    cells = [f'<div class="var" style="grid-row:1;grid-column:{i}">{escape(name)}</div>' for name, i in column.items()]
    row = 2
    for batch in layout.batches:
        if not batch.operands:
            continue
        label = f"{batch.operation} ×{batch.width}"
        cells.append(f'<div class="what" style="grid-row:{row};grid-column:1">{escape(label)}</div>')
        for operand in batch.operands:
            fill = colour(ROLES.get(operand.role, LAST_ROLE))
            in_place = operand.in_place_after if is_after else operand.in_place_before
            for name in operand.variables:
                cells.append(
                    f'<div class="mark{"" if in_place else " away"}" title="{escape(f"{operand.role}: {name}")}" '
                    f'style="grid-row:{row};grid-column:{column[name]};background:{fill}"></div>'
                )
        row += 1
    return f'<div class="scroll"><div class="strip">{"".join(cells)}</div></div>'


def _times(e: Explanation) -> Iterator[str]:
    if e.observed is None:
        return
    yield "<h2>Where the time goes</h2><p>This mini-batch, every batch timed alone.</p>"
    yield table_html(["", "time", "share"], e.times, text=(0,))
    yield from (f"<p>{escape(line)}</p>" for line in e.observed.remarks)
    yield f"<p>{e.moved}.</p>"
