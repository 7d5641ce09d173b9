"""What is listed of torch's functions by name, against what torch says of all its operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from edbc.capture.semantics import rules

NO_VIEWS = {
    "as_strided": "reads memory by strides: refused",
    "_reshape_alias": "reads memory by strides, and is torch's own",
    "_nested_view_from_buffer": "of nested tensors, which are not recorded",
    "conj": "has other elements",
    "imag": "has elements of another dtype",
    "real": "has elements of another dtype",
    "view_as_complex": "has elements of another dtype",
    "view_as_real": "has elements of another dtype",
    "lift_fresh": "is torch's own, for tensors made of numbers",
    "pin_memory": "moves to other memory",
    "slice": "is torch's own, for indexing",
    "to": "changes dtypes: one of CASTS",
    "unfold": "has elements several times: a node, which what reads it may see as a view",
    "split_with_sizes": "is torch's own, for split",
    **dict.fromkeys("adjoint dsplit hsplit linalg_diagonal mH matrix_H moveaxis numpy_T "
                    "resolve_conj resolve_neg vsplit".split(), "is a node, which may not be changed in place"),
    **dict.fromkeys("_autocast_to_full_precision _autocast_to_reduced_precision _conj _fw_primal _make_dual _neg_view "
                    "_nested_get_values _nested_view_from_jagged _test_autograd_multiple_dispatch_view slice_inverse"
                    .split(), "is torch's own"),
    **dict.fromkeys("_indices _sparse_broadcast_to _values ccol_indices coalesce col_indices crow_indices indices "
                    "row_indices values".split(), "is of sparse tensors, which are not recorded"),
}  # fmt: skip
"""Operators whose results share their operand's memory and that are recorded otherwise, and why."""
NO_DROPOUTS = {
    **dict.fromkeys(
        ("lstm", "gru", "rnn_tanh", "rnn_relu", "_cudnn_rnn", "miopen_rnn"), "draw where they drop out only"
    ),
    "_cudnn_init_dropout_state": "is torch's own",
    "_lstm_mps": "is torch's own",
    "native_dropout": "is torch's own, for dropout on devices",
    "rrelu_with_noise": "draws into an operand: refused",
    "rrelu_with_noise_functional": "is torch's own, for rrelu",
}
"""Operators that draw while training and do something else otherwise."""


_all_operators: Any = torch._C._dispatch_get_all_op_names  # type: ignore[attr-defined]


def operators() -> Iterator[tuple[str, Any]]:
    """Every overload of torch's own, but those that write to memory that they are given."""
    names = {name.removeprefix("aten::").partition(".")[0] for name in _all_operators() if name.startswith("aten::")}
    for name in sorted(names):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            if "out" not in overload and not name.endswith("_"):
                yield name, getattr(packet, overload)


def shares_memory(schema: Any) -> bool:
    """Whether all results share the first tensor's memory, which is only read."""
    aliases = [result.alias_info for result in schema.returns]
    begins = bool(schema.arguments) and isinstance(schema.arguments[0].real_type, torch.TensorType)
    return begins and bool(aliases) and all(a is not None and not a.is_write for a in aliases)


def test_every_view_of_torch_is_known() -> None:
    """What torch's schemas call an alias is listed as a view, or has a reason; and no reason is idle."""
    found = {name for name, operator in operators() if shares_memory(operator._schema)}
    assert len(found) > 20
    assert found - rules.VIEWS - NO_VIEWS.keys() == set()
    assert NO_VIEWS.keys() & rules.VIEWS == set()


def test_every_listed_view_shows_elements_of_its_tensor() -> None:
    """Of a tensor of different numbers, no new ones."""
    x = torch.arange(24.0).view(2, 3, 4)
    given = {
        "getitem": (0,), "select": (0, 1), "narrow": (1, 0, 2), "view": (6, 4), "reshape": (4, 6),
        "transpose": (0, 1), "swapaxes": (0, 1), "swapdims": (0, 1), "permute": (2, 0, 1), "movedim": (0, 1),
        "unsqueeze": (0,), "unflatten": (2, (2, 2)), "chunk": (2,), "split": (1,), "tensor_split": (2,),
        "expand": (5, 2, 3, 4), "broadcast_to": ((5, 2, 3, 4),),
        **dict.fromkeys(rules.AS_ANOTHER, (x,)),
    }  # fmt: skip
    for name in rules.VIEWS:
        flat = name in ("t", "T")
        operand = x[0] if flat else x
        method = (
            torch.ops.aten.alias if name == "alias" else getattr(operand, "__getitem__" if name == "getitem" else name)
        )
        result = method
        if callable(method):
            result = method(operand) if name == "alias" else method(*given.get(name, ()))
        for part in result if isinstance(result, tuple | list) else (result,):
            assert torch.isin(part, operand).all(), name
            assert part.dtype is operand.dtype, name


def test_every_function_that_draws_while_training_is_known() -> None:
    """What torch tags as random and tells whether it trains is listed as a dropout, is `rrelu`, or has a reason."""
    found = {
        name
        for name, operator in operators()
        if torch.Tag.nondeterministic_seeded in operator.tags
        and {argument.name for argument in operator._schema.arguments} & {"train", "training"}
    }
    assert {"dropout", "alpha_dropout"} <= found
    assert found - rules.DROPOUTS - NO_DROPOUTS.keys() <= {"rrelu"}
    for name in rules.DROPOUTS:
        function = getattr(torch, name, None) or getattr(torch.nn.functional, name)
        x = torch.ones(2, 3, 4, 5) if name.endswith(("2d", "3d")) else torch.ones(2, 3, 4)
        assert torch.equal(function(x, 0.5, False), x), name


def test_every_function_that_is_listed_as_a_read_gives_no_tensor() -> None:
    """Numbers, truths, arrays or nothing."""
    x = torch.ones(1, dtype=torch.int64)
    given = {"equal": (x,), "allclose": (x,), "contains": (1,)}
    for name in rules.READS - {"_assert", "_assert_async"}:
        is_special = name in ("bool", "int", "float", "index", "array", "contains")
        method = getattr(x, f"__{name}__", None) if is_special else None
        found = (method or getattr(x, name))(*given.get(name, ()))
        assert not isinstance(found, torch.Tensor), name
