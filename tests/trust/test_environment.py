"""What a plan was compiled from and what it meets: every difference is exit 4 with both sides and a remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from edbc.run.modelfile import import_model_file


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def edited_model(chain: Path) -> tuple[str, ...]:
    edit(chain.with_suffix(".py"), "torch.tanh", "torch.sigmoid")
    return ()


def edited_default(chain: Path) -> tuple[str, ...]:
    edit(chain.with_suffix(".py"), "hidden_size: int = 8", "hidden_size: int = 16")
    return ()


def edited_but_trusted(chain: Path) -> tuple[str, ...]:
    edit(chain.with_suffix(".py"), "torch.tanh", "torch.sigmoid")
    return ("--trust-changed-model",)


def config_key_gone(chain: Path) -> tuple[str, ...]:
    edit(chain.with_suffix(".py"), "hidden_size", "size")
    return ("--trust-changed-model",)


def later_format(chain: Path) -> tuple[str, ...]:
    edit(chain, "format_version: 1", "format_version: 7")
    return ()


def unknown_requirement(chain: Path) -> tuple[str, ...]:
    edit(chain, "[torch>=2.8]", "[torch>=2.8, quantum>=1.0]")
    return ()


def newer_torch(chain: Path) -> tuple[str, ...]:
    edit(chain, "[torch>=2.8]", "[torch>=99.1]")
    return ()


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], tuple[str, ...]]:
    def write(chain: Path) -> tuple[str, ...]:
        state = import_model_file(chain.with_suffix(".py")).build({}, 0).state_dict()
        change(state)
        save_file(state, chain.parent / "weights.safetensors")
        return ("--weights", str(chain.parent / "weights.safetensors"))

    return write


CASES: dict[str, tuple[Callable[[Path], tuple[str, ...]], list[str]]] = {
    "model file edited": (edited_model, ["sha256", "got", "edbc compile", "--trust-changed-model"]),
    "default of the config edited": (edited_default, ["sha256", "got", "edbc compile"]),
    "config key gone": (config_key_gone, ["'hidden_size'", "size", "edbc compile"]),
    "plan of a later format": (later_format, ["expected plan format version 1", "got version 7", "upgrade edbc"]),
    "unknown requirement": (unknown_requirement, ["'quantum>=1.0'", "does not know", "update edbc"]),
    "later torch required": (newer_torch, ["torch>=99.1", f"got torch {torch.__version__}", "update torch"]),
    "weights of another shape": (
        weights(lambda s: s.update({"start": torch.zeros(9)})),
        ["'start'", "expected float32 (8,)", "got float32 (9,)", "give weights"],
    ),
    "weights of another dtype": (
        weights(lambda s: s.update({"start": torch.zeros(8, dtype=torch.float64)})),
        ["'start'", "expected float32 (8,)", "got float64 (8,)", "give weights"],
    ),
    "a weight missing": (weights(lambda s: s.pop("start")), ["'start'", "expected float32 (8,)", "got nothing"]),
    "a weight too many": (
        weights(lambda s: s.update({"extra": torch.zeros(1)})),
        ["'extra'", "expected nothing", "got float32 (1,)"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_does_not_fit_the_plan_is_refused_with_both_sides(name: str, edbc, chain: Path) -> None:
    """Exit 4, one line, what was expected, what is here, and what to do; nothing ran."""
    make, words = CASES[name]
    result = edbc("run", chain, *make(chain))

    assert result.exit_code == 4, result.output
    error = result.stderr.splitlines()[-1]
    assert all(word in error for word in words), error
    assert not result.stdout
    assert "Traceback" not in result.stderr


def test_a_model_file_that_is_gone_has_no_remedy_that_fails(edbc, chain: Path) -> None:
    """Trusting what is not there is no way out, and is not named as one."""
    chain.with_suffix(".py").unlink()
    told = {edbc("run", chain, *options).stderr for options in ((), ("--trust-changed-model",))}

    [text] = told
    assert text.endswith("expected the plan's model file, got nothing; name it with --model FILE [E0401]\n")


def test_a_trusted_model_with_another_cell_is_refused(edbc, chain: Path) -> None:
    """Trusting a changed model does not run its cells under orders that were planned for others: exit 4, both
    operations."""
    result = edbc("run", chain, *edited_but_trusted(chain))

    assert result.exit_code == 4
    assert "plan cell 'step', operation 3: expected 'v3 = sigmoid(v2, output=0)' from the model, got 'v3 = tanh(" in (
        result.stderr
    )


def test_weights_of_float32_run_in_other_dtypes(edbc, chain: Path) -> None:
    """`--dtype` converts the model after its weights were read; that is no difference of weights."""
    arguments = weights(lambda state: state)(chain)
    for dtype in ("float64", "bfloat16"):
        assert edbc("run", chain, *arguments, "--dtype", dtype, "--verify").exit_code == 0


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 a pickle of sorts", b"\x80\x04\x95", b"\xff" * 64])
def test_only_safetensors_are_read(content: bytes, edbc, chain: Path) -> None:
    """Whatever is no safetensors file is refused; nothing falls back to unpickling."""
    path = chain.parent / "weights.safetensors"
    path.write_bytes(content)
    result = edbc("run", chain, "--weights", path)

    assert result.exit_code == 3
    assert "expected a safetensors file" in result.stderr


def test_pickled_weights_are_refused(edbc, chain: Path) -> None:
    """A file that torch.save wrote names no way in: exit 3, and what to write instead."""
    path = chain.parent / "weights.pt"
    torch.save({"start": torch.zeros(8)}, path)
    result = edbc("run", chain, "--weights", path)

    assert result.exit_code == 3
    assert "write one with safetensors.torch.save_file" in result.stderr


@pytest.mark.long
def test_without_the_compiler_reference_runs_and_says_so(run_in_forks, chain: Path) -> None:
    """Under NUMBA_DISABLE_JIT=1 the default is the reference back end, in one line of warning; who asks for native code
    is refused, exit 4."""
    switch_off = "import os; os.environ['NUMBA_DISABLE_JIT'] = '1'"
    *others, refused = run_in_forks(
        switch_off,
        ("run", chain, "--limit", 2, "--verify", "--format", "json"),
        ("explain", chain),
        ("run", chain, "--backend", "cpu"),
    )
    for code, out, told in others:
        assert code == 0, told
        assert "reference" in out
        warnings = [line for line in told.splitlines() if "Warning" in line]
        assert len(warnings) == 1
        assert "switched off (NUMBA_DISABLE_JIT): no native code, batches run call by call" in warnings[0]
    code, _, told = refused
    assert (code, "Traceback" in told) == (4, False)
    assert "--backend cpu: expected native code to run here, but numba's compiler is switched off" in told
