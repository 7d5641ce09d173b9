"""Manual pages of all commands, made from click's own description of them: man/ and the wheel have them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from edbc.tools.cli import main


def pages() -> dict[str, str]:
    """Text of each page, in roff, by the name of its file."""
    group = click.Context(main, info_name="edbc", **main.context_settings)
    found = {"edbc.1": _page(main, group)}
    for name, command in sorted(main.commands.items()):
        context = click.Context(command, info_name=name, parent=group, **command.context_settings)
        found[f"edbc-{name}.1"] = _page(command, context)
    return found


def _page(command: click.Command, context: click.Context) -> str:
    return "\n".join(_lines(command, context)) + "\n"


def _lines(command: click.Command, context: click.Context) -> Iterator[str]:
    name = context.command_path.replace(" ", "-")
    summary, _, rest = (command.help or "").replace("\b\n", "").partition("\n\n")
    yield f'.TH "{name.upper()}" "1" "" "edbc" "edbc"'
    yield from (".SH NAME", f"{_escaped(name)} \\- {_escaped(' '.join(summary.split()).rstrip('.'))}")
    usage = " ".join(command.collect_usage_pieces(context))
    yield from (".SH SYNOPSIS", f".B {_escaped(context.command_path)}", _escaped(usage))
    if rest:
        yield ".SH DESCRIPTION"
        for paragraph in rest.split("\n\n"):
            yield from (".PP", _escaped(" ".join(paragraph.split())))
    records = [record for p in command.get_params(context) if (record := p.get_help_record(context)) and record[1]]
    if records:
        yield ".SH OPTIONS"
    for option, text in records:
        yield from (".TP", f".B {_escaped(option)}", _escaped(text))
    if isinstance(command, click.Group):
        yield ".SH COMMANDS"
        for each in sorted(command.commands):
            yield from (".TP", f".B edbc-{each}(1)", _escaped(command.commands[each].get_short_help_str(100)))
    yield from (
        ".SH EXIT STATUS",
        "0 done; 1 check failed; 2 usage; 3 plan, model file or input invalid; 4 plan stale or",
    )
    yield "environment incompatible; 5 model not supported. 'edbc explain E0401' says what an error's code means."


def _escaped(text: str) -> str:
    """Text that roff shows as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
