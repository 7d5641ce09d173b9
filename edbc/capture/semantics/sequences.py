"""Recurrent layers of torch on the sequences that an instance has.

A *packed* sequence (`torch.nn.utils.rnn`) is the rows of the one that there is, in their order: code that was written
for padded batches packs a batch of one. What torch does below its Python then is to take the batch dimension off and
to put it back; a recurrent module is called with the rows. Of *several* (the words of a sentence as characters) it is
called with the rows of each, so that sequences of all instances that are as long are one batch.

A sequence of *one step*, which decoders call a layer with, is a step of its cells: nodes that batch over instances
whatever their states are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from edbc.capture.ragged.program import CannotKeep
from edbc.capture.ragged.symbols import Mask, Size, untold
from edbc.capture.semantics.rules import name_of
from edbc.capture.standins.made import Made
from edbc.capture.standins.standin import Lazy, Symbol, Value

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder


CELLS: dict[str, Any] = {
    "lstm": torch.lstm_cell,
    "gru": torch.gru_cell,
    "rnn_tanh": torch.rnn_tanh_cell,
    "rnn_relu": torch.rnn_relu_cell,
}
"""What a step of a recurrent layer computes, by the layer's function."""


def projected_lstm_cell(value: Any, state: tuple[Any, Any], of_input: Any, of_state: Any, input_bias: Any, bias: Any,
                        projection: Any) -> tuple[Any, Any]:  # fmt: skip
    """The next state of an LSTM whose output is projected (Sak et al., "Long short-term memory recurrent neural network
    architectures for large scale acoustic modeling", 2014, section 2), of which torch has no cell."""
    gates = F.linear(value, of_input, input_bias) + F.linear(state[0], of_state, bias)
    enter, keep, new, leave = gates.chunk(4, -1)
    content = keep.sigmoid() * state[1] + enter.sigmoid() * new.tanh()
    return F.linear(leave.sigmoid() * content.tanh(), projection), content


def next_state(rec: Recorder, name: str, value: Any, state: Sequence[Any], weights: Sequence[Any]) -> list[Any]:
    """The state after a step of one layer in one direction; its first part is what the step gives."""
    if len(weights) % 2:
        given: Any = *weights[:-1], *[None] * (5 - len(weights)), weights[-1]
        return [*projected_lstm_cell(value, (state[0], state[1]), *given)]
    made = rec.function(CELLS[name], (value, tuple(state) if name == "lstm" else state[0], *weights), {})
    return [*made] if name == "lstm" else [made]


def one_step(name: str, rec: Recorder, sequence: Any, states: Any, weights: Any, _: bool, layers: int, dropout: float,
             training: bool, both_ways: bool, batch_first: bool) -> Any:  # fmt: skip
    """`torch.lstm(sequence, states, weights, ...)` and its like of one step; NotImplemented for others."""
    time = int(batch_first)
    if not isinstance(sequence, Symbol) or not isinstance(weights, list | tuple) or sequence.ndim != 3:
        return NotImplemented
    if sequence.shape[time] != 1:
        return NotImplemented
    number = layers * (2 if both_ways else 1)
    each, value = len(weights) // number, sequence.select(time, 0)
    given = [state.real() if type(state) is Made else state for state in (states if name == "lstm" else (states,))]
    last: list[list[Any]] = []
    for layer in range(layers):
        for _way in range(number // layers):
            own = weights[len(last) * each : (len(last) + 1) * each]
            last.append(next_state(rec, name, value, [state[len(last)] for state in given], own))
        ways = [state[0] for state in last[-(number // layers) :]]
        value = ways[0] if len(ways) == 1 else rec.function(torch.cat, (ways, -1), {})
        if training and dropout and layer < layers - 1:
            value = rec.function(F.dropout, (value, dropout, True), {})
    stacked = [of[0].unsqueeze(0) if number == 1 else rec.function(torch.stack, (list(of),), {})
               for of in zip(*last, strict=True)]  # fmt: skip
    return value.unsqueeze(time), *stacked


class Several(Lazy):
    """The rows of several packed sequences, longest first, in the order in which torch has them: their first rows,
    their second rows, and so on. As a node only where somebody else than a recurrent layer asks for them."""

    __slots__ = ("pieces", "rec")
    slot = None

    def __init__(self, rec: Recorder, pieces: list[Any]):
        self.rec, self.pieces, self.whole = rec, pieces, None

    def _meta(self) -> torch.Tensor:
        first = self.pieces[0]
        shape = sum(map(len, self.pieces)), *first.shape[1:]
        return torch.empty(shape, dtype=first.dtype, device="meta")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if name_of(func) == "_pad_packed_sequence" and type(args[0]) is cls and not kwargs:
            return padded(args[0].rec, *args)
        return super().__torch_function__(func, types, args, kwargs)

    def make(self) -> Any:
        order = torch.cat([*_places(_steps_of(self.pieces))]).argsort()
        return self.rec.as_value(self.rec.function(torch.cat, (self.pieces,), {})[order])


def _steps_of(pieces: Sequence[Any]) -> torch.Tensor:
    """How many of some sequences have a first row, how many a second one, and so on."""
    lengths = torch.tensor([len(piece) for piece in pieces])
    return (lengths[:, None] > torch.arange(int(lengths.max()))).sum(0)


def _places(sizes: torch.Tensor) -> list[torch.Tensor]:
    """Where the rows of each sequence stand among all."""
    begins = sizes.cumsum(0) - sizes
    return [begins[sizes > number] + number for number in range(int(sizes[0]))]


def _pieces(data: Any, sizes: torch.Tensor) -> list[Any]:
    """The rows of each packed sequence."""
    return data.pieces if type(data) is Several else [data[places] for places in _places(sizes)]


class _Ones(Lazy):
    """The sizes of the steps of a packed sequence whose length is a symbol."""

    __slots__ = ("count", "rec")

    def __init__(self, rec: Recorder, count: Size):
        self.rec, self.count, self.whole = rec, count, None

    shape = property(lambda self: (self.count,))
    dtype = property(lambda self: torch.int64)
    device = property(lambda self: torch.device("cpu"))

    def size(self, dim: int | None = None) -> _Count:
        """How many there are, as torch's own code asks that hands it to `_pad_packed_sequence`."""
        return _Count(self.count.value)

    make = _meta = _read = __len__ = untold


class _Count(int):
    """An integer by which is told that it was not given."""


def packed(rec: Recorder, padded: Any, lengths: Any, batch_first: bool) -> Any:
    """`_pack_padded_sequence`: the first so many rows of each sequence, and how many have a first row, a second one and
    so on: of one sequence sizes of 1."""
    batch = 0 if batch_first else 1
    longest, count = padded.shape[1 - batch], padded.shape[batch]
    if type(lengths) is Mask and count == 1 and type(lengths.number) is Size and lengths.number == longest:
        return padded.select(batch, 0).clone(), _Ones(rec, lengths.number)
    if count != 1 and rec.keeping:
        raise CannotKeep
    numbers = lengths.tolist()
    if (
        len(numbers) != count
        or sorted(numbers, reverse=True) != numbers
        or not 0 < numbers[-1] <= numbers[0] <= longest
    ):
        raise RuntimeError(f"Expected {count} lengths from {longest} to 1, longest first, but got {numbers}")
    if count > 1 and not batch_first and type(padded) is Value:  # columns are views, each of a type
        padded, batch = padded.transpose(0, 1) * 1, 0
    pieces = [padded.select(batch, number) for number in range(count)]
    pieces = [
        (rows[:length] if length < longest else rows).clone() for rows, length in zip(pieces, numbers, strict=True)
    ]
    return pieces[0] if count == 1 else Several(rec, pieces), _steps_of(pieces)


def padded(rec: Recorder, data: Any, sizes: torch.Tensor, batch_first: bool, value: float, length: int) -> Any:
    """`_pad_packed_sequence`: rows of each sequence, with others of a value behind them, and how many they were."""
    batch = 0 if batch_first else 1
    if type(sizes) is _Ones:
        if type(length) is not _Count:
            raise CannotKeep
        return data.unsqueeze(batch).clone(), Mask(rec, (1,), (0, sizes.count, sizes.count), torch.int64)
    pieces = [data] if _is_of_one(sizes) else _pieces(data, sizes)
    longest, whole = max(length, len(sizes)), []
    for piece in pieces:
        behind = torch.full((longest - len(piece), *data.shape[1:]), value, dtype=data.dtype)
        whole.append(rec.function(torch.cat, ([piece, behind],), {}) if len(behind) else piece)
    made = whole[0].unsqueeze(batch).clone() if len(whole) == 1 else rec.function(torch.stack, (whole, batch), {})
    return made, torch.tensor([len(piece) for piece in pieces])


def sequences_padded(rec: Recorder, sequences: Sequence[Any], batch_first: bool = False, *rest: Any) -> Any:
    """`pad_sequence` of one."""
    return sequences[0].unsqueeze(0 if batch_first else 1).clone() if len(sequences) == 1 else NotImplemented


def selected(rec: Recorder, value: Any, dim: Any, index: Any) -> Any:
    """`index_select`, or `value[index]`, of the one item of a dimension, as sorting one sequence by length does."""
    is_number = type(index) is torch.Tensor and index.shape == (1,) and index.dtype is torch.int64
    is_one = is_number and type(dim) is int and value.ndim > 0 and value.shape[dim] == 1
    return value.clone() if is_one and int(index[0]) == 0 else NotImplemented


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: partial(one_step, name) for name in CELLS},
    "_pack_padded_sequence": packed,
    "_pad_packed_sequence": padded,
    "pad_sequence": sequences_padded,
    "index_select": selected,
}


def is_packed(module: nn.Module, args: tuple[Any, ...]) -> bool:
    """Whether a recurrent module is called with a packed sequence."""
    return bool(args) and type(args[0]) is PackedSequence and isinstance(module, nn.RNNBase)


def on_rows(call: Callable[..., Any], sequence: PackedSequence, states: Any = None) -> Any:
    """What a recurrent module gives for packed sequences: `call` is the module's of the rows of one, and of states."""
    sizes, order, back = sequence[1:]
    if _is_of_one(sizes):
        given = () if states is None else (_each_state(lambda state: state.squeeze(1), states),)
        output, last = call(sequence.data, *given)
        return PackedSequence(output, *sequence[1:]), _each_state(lambda state: state.unsqueeze(1), last)
    order = torch.arange(int(sizes[0])) if order is None else order
    outputs, lasts = [], []
    for number, rows in enumerate(_pieces(sequence.data, sizes)):
        select = partial(_state_of, place=order[number : number + 1])
        output, last = call(rows) if states is None else call(rows, _each_state(select, states))
        outputs.append(output)
        lasts.append(last)
    if type(back) is torch.Tensor:  # no node
        lasts, back = [lasts[number] for number in back.tolist()], None
    made: Any = Several(outputs[0].rec, outputs)
    is_pair = type(lasts[0]) is tuple
    parts = [torch.stack(each, 1) for each in (zip(*lasts, strict=True) if is_pair else [lasts])]
    parts = parts if back is None else [part.index_select(1, back) for part in parts]
    return PackedSequence(made, *sequence[1:]), tuple(parts) if is_pair else parts[0]


def _state_of(state: Any, place: Any) -> Any:
    """Of one sequence: by a number that is an operand, as views would be types."""
    return state.index_select(1, place).squeeze(1)


def _each_state(function: Callable[[Any], Any], states: Any) -> Any:
    return tuple(map(function, states)) if isinstance(states, tuple | list) else function(states)


def _is_of_one(sizes: Any) -> bool:
    return type(sizes) is _Ones or (type(sizes) is torch.Tensor and bool((sizes == 1).all()))
