"""`nn.LSTM`, `nn.GRU` and `nn.RNN` over a ragged sequence, unrolled into steps whose nodes batch over instances: of
each layer and direction a cell for each row, whichever the policy takes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from edbc.capture.ragged.call import Call, Rule
from edbc.capture.ragged.rows import own, rows_of
from edbc.capture.ragged.value import Ragged, each_row, scanned
from edbc.capture.semantics import sequences
from edbc.capture.standins.made import Made
from edbc.capture.standins.standin import Value


def recurrent(call: Call) -> Any:
    """`lstm(input, states, weights, has_biases, layers, dropout, training, both_ways, batch_first)` and its like."""
    if len(call.args) != 9 or call.kwargs or type(call.args[0]) is not Ragged:
        return NotImplemented
    sequence, states, weights, _, layers, dropout, training, both_ways, batch_first = call.args
    if sequence.ndim == 3 and sequence.at == 1 - int(batch_first):
        return _of_each(call, sequence, states if call.name == "lstm" else (states,))
    if sequence.ndim != 3 or sequence.at != int(batch_first):
        return NotImplemented
    directions, each = 2 if both_ways else 1, len(weights) // layers // (2 if both_ways else 1)
    rec, is_lstm = call.rec, call.name == "lstm"
    if not sequence.refs:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    last: list[list[Any]] = []
    for layer in range(layers):
        ways = []
        for way in range(directions):
            number = layer * directions + way
            state = [_first_state(rec, s, number) for s in (states if is_lstm else (states,))]
            own = weights[number * each : (number + 1) * each]
            ways.append(_steps(call, sequence, way == 1, state, own))
            last.append(state)
        sequence = ways[0] if directions == 1 else rec.function(torch.cat, (ways, -1), {})
        if training and dropout and layer < layers - 1:
            sequence = rec.function(F.dropout, (sequence, dropout, True), {})
    return (sequence, *[rec.function(torch.stack, (list(of),), {}) for of in zip(*last, strict=True)])


def _of_each(call: Call, sequences: Ragged, states: Sequence[Any]) -> Any:
    """Of many sequences that are equally long, the characters of words say: a node for each."""
    rec, others = call.rec, call.args[2:8]
    rows = [sequences, *[rows_of(rec, state, 1) for state in states]]
    if None in rows or (call.args[5] and call.args[6]):  # dropout between layers
        return NotImplemented

    def one(sequence: Value, *states: Value) -> list[Any]:
        first = tuple(state.unsqueeze(1) for state in states)
        found = rec.function(
            call.func, (sequence.unsqueeze(1), first if len(first) > 1 else first[0], *others, False), {}
        )
        return [value.squeeze(1) for value in found]

    output, *last = each_row(rec, rows, one, 1)
    return output.like_at(sequences.at), *last


def _first_state(rec: Any, states: Any, number: int) -> Any:
    """The state of a layer and direction before its first step; states that torch or forward makes are equal rows, and
    never rows of many lengths, whatever their shape."""
    if type(states) is Made:
        states = states.real()
    if type(states) is torch.Tensor and not states.requires_grad:
        return rec.constant_row(states[number].contiguous())
    return states[number]


def _steps(call: Call, rows: Ragged, backwards: bool, state: list[Any], weights: Sequence[Any]) -> Ragged:
    """Outputs of one layer in one direction, as one run; `state` becomes the last one."""

    def step(value: Value, *before: Value) -> list[Any]:
        return sequences.next_state(call.rec, call.name, value, before, weights)

    found = scanned(call.rec, rows, [own(call.rec, s) for s in state], step, backwards)
    state[:] = [outputs.value(0 if backwards else -1) for outputs in found]
    return found[0]


def of_one_sequence(call: Call) -> Any:
    """What packs and pads the one sequence of an instance (`semantics.sequences`)."""
    return NotImplemented if call.kwargs else sequences.FUNCTIONS[call.name](call.rec, *call.args)


RULES: dict[str, Rule] = {
    **dict.fromkeys(sequences.CELLS, recurrent),
    **dict.fromkeys(("_pack_padded_sequence", "_pad_packed_sequence", "pad_sequence"), of_one_sequence),
}
