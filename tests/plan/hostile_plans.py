"""Files that claim to be plans and are not: every one must give exactly one PlanError, within time and memory.

`SMALL` edits a small valid plan in one place each; `large_plans` makes the ones that attack time or memory, so that
no megabyte of them is ever committed. Both give `(bytes, words that the error must contain)` by name.
"""

from __future__ import annotations

from collections.abc import Callable

from plan_examples import small_plan

from edbc.plan import plan_text
from edbc.plan.events import MAX_BYTES

VALID = plan_text(small_plan())

LIMIT = MAX_BYTES


def edited(old: str, new: str, count: int = 1) -> bytes:
    """The small plan with `old`, which must occur, replaced by `new`."""
    assert old in VALID, old
    return VALID.replace(old, new, count).encode("utf-8", "surrogatepass")


def _with_value(value: str) -> bytes:
    return edited("hidden_size: 64", f"hidden_size: {value}")


SMALL: dict[str, tuple[bytes, str]] = {
    # not a plan at all
    "empty file": (b"", "expected a plan, got nothing"),
    "only a comment": (b"# plan\n", "expected a plan, got nothing"),
    "only an end": (b"...\n", ""),
    "a null": (b"null\n...\n", "expected a mapping for 'plan', got 'null'"),
    "a list": (b"- 1\n...\n", "expected a mapping for 'plan', got a list"),
    "a text": (b"plan\n...\n", "expected a mapping for 'plan', got 'plan'"),
    "an empty mapping": (b"{}\n...\n", "'format_version'"),
    "binary": (bytes(range(256)), "byte 0x80"),
    "a zip": (b"PK\x03\x04\x14\x00\x00\x00\x08\x00", "U+0003"),
    "a pickle": (b"\x80\x04\x95\x10\x00\x00\x00", "byte 0x80"),
    "JSON lines": (b'{"a": 1}\n{"b": 2}\n', "'format_version' as the first key, got 'a'"),
    # encodings
    "UTF-16 with mark": (VALID.encode("utf-16"), "expected UTF-8, got byte 0xff"),
    "UTF-16 without mark": (VALID.encode("utf-16-le"), "U+0000"),
    "UTF-32": (VALID.encode("utf-32"), "expected UTF-8"),
    "UTF-8 with mark": (VALID.encode("utf-8-sig"), "U+FEFF"),
    "latin-1": (edited("models/tree.py", "modèles/tree.py").decode().encode("latin-1"), "got byte 0xe8"),
    "UTF-7 look-alike": (b"+AGE-: 1\n...\n", "'format_version' as the first key"),
    "overlong UTF-8": (edited("trees.txt", "trees.XX").replace(b"XX", b"\xc0\xaf"), "byte 0xc0"),
    "encoded surrogate": (edited("trees.txt", "trees.\ud800"), "byte 0xed"),
    "cut inside a character": (edited("trees.txt", "trees.é")[: VALID.index("trees.txt") + 7], "byte 0xc3"),
    "NUL": (edited("trees.txt", "trees\0.txt"), "U+0000"),
    "escape character": (edited("trees.txt", "trees\x1b[31m"), "U+001B"),
    "DEL": (edited("trees.txt", "trees\x7f"), "U+007F"),
    "next line": (edited("trees.txt", "trees\x85"), "U+0085"),
    "line separator": (edited("trees.txt", "trees\u2028"), "U+2028"),
    "right-to-left override": (edited("models/tree.py:12", "models/\u202eyp.eert:12"), "for 'source'"),
    "zero width space": (edited("trees.txt", "tr\u200bees"), "a file name"),
    # YAML beyond plain data
    "anchor": (edited("seed: 0", "seed: &a 0"), "the anchor 'a'"),
    "alias": (edited("seed: 0", "seed: *a"), "the alias 'a'"),
    "anchor and alias": (edited("config:\n", "config: &c\n"), "the anchor 'c'"),
    "tag": (edited("seed: 0", "seed: !!int 0"), "the tag 'tag:yaml.org,2002:int'"),
    "python object": (edited("seed: 0", "seed: !!python/object/apply:os.system ['true']"), "the tag"),
    "python name": (edited("seed: 0", "seed: !!python/name:os.system"), "the tag"),
    "local tag": (edited("seed: 0", "seed: !secret 0"), "the tag '!secret'"),
    "bare tag": (edited("seed: 0", "seed: ! 0"), "the tag '!'"),
    "binary tag": (edited("path: \"../models/tree.py\"", "path: !!binary Li4="), "the tag"),
    "tag on the top": (b"!!omap " + VALID.encode(), ""),
    "YAML directive": (b"%YAML 1.1\n---\n" + VALID.encode(), "directives"),
    "TAG directive": (b"%TAG ! tag:x,2000:\n---\n" + VALID.encode(), "directives"),
    "two documents": (VALID.encode() + VALID.encode(), "expected YAML"),
    "two documents, dashes": (VALID.encode() + b"--- 1\n", "a second one"),
    "merge key": (edited("config:\n", "config:\n    <<: {}\n"), "the merge key"),
    "duplicate key": (edited("  seed: 0\n", "  seed: 0\n  seed: 0\n"), "'seed' again"),
    "duplicate state": (edited("    out: out\n", "    out: out\n    \"out\": leaf\n"), "'out' again"),
    "duplicate metric": (edited("guards:\n", "guards:\n  batches: {value: 99}\n"), "'batches' again"),
    "duplicate cell": (edited("  out:\n    operations", "  leaf:\n    operations"), "'leaf' again"),
    "a list as a key": (edited("config:\n", "config:\n    ? [a]\n    : 1\n"), "a key of 'config', got a list"),
    "a mapping as a key": (edited("config:\n", "config:\n    ? {a: b}\n    : 1\n"), "a key of 'config', got a mapping"),
    "a null key": (edited("config:\n", "config:\n    null: 1\n"), "expected a name for 'config', got 'null'"),
    "a number as a key": (edited("config:\n", "config:\n    1: 1\n"), "expected a name for 'config', got '1'"),
    "tab as indent": (edited("  seed: 0", "\tseed: 0"), "expected YAML"),
    "unclosed quote": (edited("\"../models", "\"../mo\\dels"), "expected YAML"),
    "unclosed list": (edited("[torch>=2.8]", "[torch>=2.8"), "a requirement"),
    "unclosed guard": (VALID.encode()[:-6], "expected YAML"),
    "no end": (VALID.encode()[:-4], "'...'"),
    "text after the end": (VALID.encode() + b"x\n", ""),
    # version
    "no version": (edited("format_version: 1\n", ""), "'format_version' as the first key"),
    "version second": (edited("format_version: 1\nedbc:", "edbc: x\nformat_version: 1\nx:"), "as the first key"),
    "version 0": (edited("format_version: 1", "format_version: 0"), "from 1 to"),
    "version -1": (edited("format_version: 1", "format_version: -1"), "from 1 to"),
    "version 1.0": (edited("format_version: 1", "format_version: 1.0"), "expected an integer"),
    "version as text": (edited("format_version: 1", "format_version: \"1\""), "expected an integer"),
    "version true": (edited("format_version: 1", "format_version: true"), "expected an integer"),
    # scalars
    "NaN": (_with_value(".nan"), "in quotes"),
    "infinity": (_with_value("-.inf"), "in quotes"),
    "overflowing float": (_with_value("1.0e999"), "not finite"),
    "huge integer": (_with_value("9" * 30), "at most 9007199254740992"),
    "enormous integer": (_with_value("9" * 5000), "in quotes"),
    "just too large": (_with_value("9007199254740993"), "at most 9007199254740992"),
    "octal": (_with_value("012"), "in quotes"),
    "hexadecimal": (_with_value("0x10"), "in quotes"),
    "underscored": (_with_value("1_000"), "in quotes"),
    "sexagesimal": (_with_value("190:20:30"), "in quotes"),
    "timestamp": (_with_value("2001-12-14"), "in quotes"),
    "yes": (_with_value("yes"), "in quotes"),
    "Off": (_with_value("Off"), "in quotes"),
    "TRUE": (_with_value("TRUE"), "in quotes"),
    "tilde": (_with_value("~"), "in quotes"),
    "nothing": (_with_value(""), "got nothing"),
    "plus": (_with_value("+1"), "in quotes"),
    "minus zero": (_with_value("-0"), "in quotes"),
    "Arabic digits": (_with_value("\u0661\u0662"), "in quotes"),
    "null in config": (_with_value("null"), "got 'null'"),
    "list in config": (_with_value("[1]"), "got a list"),
    "newline in config": (_with_value('"a\\nb"'), "printable text"),
    "NUL in config": (_with_value('"a\\0b"'), "printable text"),
    "escaped surrogate": (_with_value('"\\uD800"'), "expected"),
    "escape beyond Unicode": (_with_value('"\\U00110000"'), "expected YAML"),
    "escape beyond 32 bits": (_with_value('"\\UFFFFFFFF"'), "expected YAML"),
    "long text in config": (_with_value("a" * 2001), "2,000 characters"),
    # fields
    "unknown key": (edited("  seed: 0\n", "  sead: 0\n"), "did you mean 'seed'?"),
    "unknown key, nothing close": (edited("  seed: 0\n", "  zzzzz: 0\n  seed: 0\n"), "its keys are path, sha256"),
    "unknown top key": (edited("guards:\n", "guard:\n"), "did you mean 'guards'?"),
    "missing key": (edited("  seed: 0\n", ""), "the key 'seed' in 'model', got none"),
    "text for an integer": (edited("  seed: 0\n", "  seed: abc\n"), "expected an integer for 'seed', got 'abc'"),
    "negative seed": (edited("  seed: 0\n", "  seed: -1\n"), "from 0 to"),
    "negative nodes": (edited("nodes: 2396", "nodes: -5"), "from 0 to"),
    "float for an integer": (edited("  seed: 0\n", "  seed: 0.5\n"), "expected an integer for 'seed', got '0.5'"),
    "true for an integer": (edited("  seed: 0\n", "  seed: true\n"), "expected an integer for 'seed', got 'true'"),
    "list for a mapping": (edited("model:\n", "model: []\nmodel2:\n"), "expected a mapping for 'model', got a list"),
    "mapping for a list": (edited("requirements: [torch>=2.8]", "requirements: {torch: 2}"), "expected a list"),
    "integer for a text": (edited("edbc: \"0.1.0\"", "edbc: 1"), "expected a version for 'edbc', got '1'"),
    "unquoted version": (edited("edbc: \"0.1.0\"", "edbc: 0.1.0"), "in quotes"),
    "short sha256": (edited("ab" * 32, "ab" * 31), "hexadecimal"),
    "upper-case sha256": (edited("ab" * 32, "AB" * 32), "hexadecimal"),
    "unknown source": (edited("source: file", "source: files"), "'sample' or 'file'"),
    "requirement as a command": (edited("torch>=2.8", "'torch>=2.8; rm -rf /'"), "a requirement"),
    "requirement twice": (edited("[torch>=2.8]", "[torch>=2.8, torch>=2.8]"), "each requirement once"),
    # model and files
    **{
        f"model path {path!r}": (edited('"../models/tree.py"', quoted), "relative path")
        for path, quoted in {
            path: '"' + "".join(c if " " <= c <= "~" and c not in '"\\' else f"\\x{ord(c):02x}" for c in path) + '"'
            for path in ("/etc/passwd.py", "..\\models\\tree.py", "C:/models/tree.py", "C:tree.py", "//host/tree.py",
                         "a//tree.py", "./tree.py", "a/../tree.py", "../..", "..", ".", ".py", "tree", "tree.pyc",
                         "a/./tree.py", "tree.py/", "nul\0.py", "new\nline.py", "bell\a.py", "file:tree.py")
        }.items()
    },
    **{
        f"weights {name!r}": (edited("name: tree.safetensors", f"name: {quoted}"), words)
        for name, quoted, words in (
            ("above", '"../tree.safetensors"', "a file name without a folder that ends in .safetensors"),
            ("below", '"weights/tree.safetensors"', "a file name without a folder"),
            ("absolute", '"/tmp/tree.safetensors"', "a file name without a folder"),
            ("home", '"~/tree.safetensors"', "a file name without a folder"),
            ("backslash", '"..\\\\tree.safetensors"', "a file name without a folder"),
            ("drive", '"C:tree.safetensors"', "a file name without a folder"),
            ("scheme", '"http:tree.safetensors"', "a file name without a folder"),
            ("stream", '"tree.safetensors:x.safetensors"', "a file name without a folder"),
            ("parent", '".."', "a file name without a folder"),
            ("only an ending", '".safetensors"', "ends in .safetensors"),
            ("pickle", '"tree.pt"', "ends in .safetensors"),
            ("pickle behind", '"tree.safetensors.pkl"', "ends in .safetensors"),
            ("upper case", '"tree.SAFETENSORS"', "ends in .safetensors"),
            ("space behind", '"tree.safetensors "', "ends in .safetensors"),
            ("NUL", '"tree\\0.safetensors"', "a file name"),
            ("new line", '"tree\\n.safetensors"', "a file name"),
            ("turned around", '"tree\\u202e.safetensors"', "a file name"),
            ("too long", f'"{"a" * 250}.safetensors"', "at most 255 characters"),
            ("empty", '""', "not empty"),
            ("a number", "7", "a file name"),
            ("a list", "[tree.safetensors]", "a file name"),
        )
    },
    "weights without a hash": (edited(f"    sha256: {'cd' * 32}\n", ""), "the key 'sha256' in 'weights', got none"),
    "weights as a name": (edited("  weights:\n", "  weights: tree.safetensors\n  x:\n"), "a mapping for 'weights'"),
    "weights of a list": (edited("  weights:\n", "  weights: []\n  x:\n"), "a mapping for 'weights'"),
    "weights null": (edited("  weights:\n", "  weights: null\n  x:\n"), "a mapping for 'weights', got 'null'"),
    "weights with more": (edited("  weights:\n", "  weights:\n    url: x\n"), "its keys are name, sha256"),
    "empty model path": (edited('"../models/tree.py"', '""'), "not empty"),
    "file in a folder": (edited("name: trees.txt", 'name: "../trees.txt"'), "a file name without a folder"),
    "file by absolute path": (edited("name: trees.txt", 'name: "/data/trees.txt"'), "a file name without a folder"),
    "file named ..": (edited("name: trees.txt", 'name: ".."'), "a file name without a folder"),
    "sample with a file": (edited("source: file", "source: sample"), "no files with source 'sample'"),
    # types and policy
    "type twice": (edited("- name: out", "- name: leaf"), "each type once, got 'leaf' again"),
    "type with a space": (edited("- name: leaf", "- name: le af"), "a type name"),
    "unknown action": (edited("    out: out\n", "    out: exit\n"), "a type of the plan for state 'out', got 'exit'"),
    "unknown policy": (edited("kind: fsm", "kind: fms"), "got 'fms'"),
    "fsm without encoding": (edited("encoding: sort", "encoding: null"), "expected an encoding of"),
    "agenda beside a rule": (edited("kind: fsm", "kind: agenda"), "no rule beside 'agenda', got 'critical'"),
    "beside nothing known": (edited("beside: critical", "beside: luck"), "got 'luck'"),
    "costs of some types": (edited("  out: {fixed_us: 3, row_us: 0}\n", ""), "an entry for the type 'out', got none"),
    "costs of no type": (edited("  out: {fixed_us: 3, row_us: 0}", "  oot: {fixed_us: 3, row_us: 0}"), "got 'oot'"),
    "negative cost": (edited("fixed_us: 3,", "fixed_us: -3,"), "a number from 0 to"),
    "everything free": (edited("fixed_us: 3,", "fixed_us: 0,").replace(b"16.2", b"0.0"), "above 0 for some type"),
    "training too deep": (edited("seeds: [1, 2]", "seeds: [[[[1]]]]"), "a scalar this deep"),
    "control character in a state": (edited("    out: out\n", '    "o\\x01": out\n'), "a state"),
    # cells
    "missing cell": (edited("types:\n", "types:\n- name: more\n  signature: x\n  source: x\n"), "for the type 'more'"),
    "unknown cell": (edited("guards:\n", "  more:\n    operations: [x = input()]\n    batches: []\n    layout: [x]\n"
                            "    weights: []\n    copies: 0\nguards:\n"), "for a type of the plan, got 'more'"),
    "no operations": (edited("    operations:\n    - h = input(index=0)\n    - y = linear(h, weight=\"weight\", "
                             "bias=\"bias\", output=0)\n", "    operations: []\n"), "at least 1 item in 'operations'"),
    "unknown operation": (edited("i = sigmoid(v1)", "i = sigmoyd(v1)"), "did you mean 'sigmoid'?"),
    "dunder operation": (edited("i = sigmoid(v1)", "i = __import__(v1)"), "'__import__' is no operation"),
    "dotted operation": (edited("i = sigmoid(v1)", "i = os.system(v1)"), "does not begin with"),
    "arity": (edited("i = sigmoid(v1)", "i = sigmoid(v1, v2)"), "takes 1 operands, not 2"),
    "used before defined": (edited("i = sigmoid(v1)", "i = sigmoid(h)"), "defined on earlier lines, got 'h'"),
    "used by itself": (edited("i = sigmoid(v1)", "i = sigmoid(i)"), "defined on earlier lines, got 'i'"),
    "defined twice": (edited("u = tanh(v2)", "i = tanh(v2)"), "each name defined once, got 'i' again"),
    "unknown attribute": (edited("x = input(index=0)", "x = input(indx=0)"), "did you mean 'index'?"),
    "attribute twice": (edited("x = input(index=0)", "x = input(index=0, index=1)"), "given twice"),
    "output twice": (edited("output=1", "output=0"), "outputs numbered from 0"),
    "output missing": (edited("output=1", "output=2"), "outputs numbered from 0"),
    "huge output": (edited("output=1", "output=9007199254740992"), "outputs numbered from 0"),
    "negative output": (edited("output=1", "output=-1"), "an output's number"),
    "call after a line": (edited("i = sigmoid(v1)", "i = sigmoid(v1)()"), "follows the closing parenthesis"),
    "code as an operand": (edited("i = sigmoid(v1)", "i = sigmoid(v1[0])"), "neither an operand nor attribute"),
    "batch dropped": (edited("    - [u]\n", ""), "before"),
    "last batch dropped": (edited("    - [h]\n", ""), "a batch for 'h'"),
    "batch twice": (edited("    - [u]\n", "    - [u]\n    - [u]\n"), "'u' again"),
    "batches swapped": (edited("    - [u]\n    - [c]\n", "    - [c]\n    - [u]\n"), "'u' before 'c'"),
    "variable twice in a batch": (edited("[v1, v2]", "[v1, v2, v1]"), "distinct variables"),
    "source in a batch": (edited("[v1, v2]", "[v1, v2, x]"), "or a source"),
    "unknown in a batch": (edited("[v1, v2]", "[v1, v2, zz]"), "got 'zz'"),
    "two operations in a batch": (edited("    - [i]\n    - [u]\n", "    - [i, u]\n"), "of one operation"),
    "operand in its own batch": (edited("    - [c]\n    - [n]\n", "    - [c, n]\n"), "'c' before 'n'"),
    "empty batch": (edited("    - [i]\n", "    - []\n    - [i]\n"), "at least 1 item"),
    "variable missing in the layout": (edited("[x, v1, v2,", "[x, v1,"), "'v2' too, got 7 of 8"),
    "variable twice in the layout": (edited("[x, v1, v2,", "[x, v1, v2, v1,"), "'v1' again"),
    "unknown in the layout": (edited("[x, v1, v2,", "[x, v1, v2, w,"), "got 'w'"),
    "shared value in the layout": (edited("[x, v1, v2,", "[x, v1, v2, p1,"), "got 'p1'"),
    "weight twice": (edited("weights: [weight]", "weights: [weight, weight]"), "each weight once"),
    "negative copies": (edited("copies: 1", "copies: -1"), "from 0 to"),
    "copies beyond doubles": (edited("copies: 1", "copies: 18446744073709551616"), "from 0 to"),
    "eager that is no operand": (edited("eager: [x]", "eager: [v1]"), "operands of the cell, got 'v1'"),
    "eager twice": (edited("eager: [x]", "eager: [x, x]"), "each operand once"),
    "a key of earlier versions": (edited("eager: [x]", "eager: [x]\n    lazy: [c]"), "'lazy'"),
    # guards
    "no guards": (edited(VALID[VALID.index("guards:") :], "guards: {}\n...\n"), "at least 1 key in 'guards'"),
    "guards missing": (edited(VALID[VALID.index("guards:") :], "...\n"), "the key 'guards'"),
    "guard NaN": (edited("{value: 19,", "{value: .nan,"), "in quotes"),
    "guard empty": (edited("{value: 19,", "{value: ,"), "got nothing"),
    "guard null": (edited("{value: 19,", "{value: null,"), "expected a number for 'value', got 'null'"),
    "guard true": (edited("{value: 19,", "{value: true,"), "expected a number for 'value', got 'true'"),
    "guard as text": (edited("{value: 19,", "{value: '19',"), "expected a number for 'value', got '19'"),
    "guard without value": (edited("{value: 19, ", "{"), "the key 'value'"),
    "guard as a number": (edited("{value: 19, tolerance: 0, direction: lower}", "19"), "expected a mapping"),
    "negative tolerance": (edited("tolerance: 0.01", "tolerance: -0.01"), "from 0 to"),
    "unknown direction": (edited("direction: lower}", "direction: down}"), "got 'down'"),
}  # fmt: skip


def _around(field: str, text: str) -> bytes:
    """The small plan with `text` as a new first item under `field`."""
    return edited(f"{field}:\n", f"{field}:\n{text}")


def _laughs(levels: int) -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(["format_version: 1", *lines, "...", ""]).encode()


def _filled(head: str, body: str, tail: str = "") -> bytes:
    """As many repetitions of `body` between `head` and `tail` as the size limit allows."""
    ends = len(head.encode()) + len(tail.encode())
    return head.encode() + body.encode() * ((LIMIT - ends) // len(body.encode())) + tail.encode()


def _keys(count: int, value: str) -> str:
    return "".join(f"    s{i}: {value}\n" for i in range(count))


def _long_operations() -> bytes:
    lines = [f"    - w{i} = sum({', '.join(['x'] * 1_300)})\n" for i in range(3_000)]
    return edited("    - i = sigmoid", "".join(lines) + "    - i = sigmoid")


VERSION = "format_version: 1\n"

LARGE: dict[str, tuple[Callable[[], bytes], str]] = {
    "50 MB of zeros": (lambda: bytes(50_000_000), "expected at most"),
    "one byte too many": (lambda: b"#" * (LIMIT + 1), "expected at most"),
    "billion laughs": (lambda: _laughs(30), "a key of 'plan'"),
    "quadratic blow-up": (lambda: _filled(f"{VERSION}edbc: &a {'x' * 100_000}\nmodel: [", "*a, ", "]\n"), "the anchor"),
    "comments": (lambda: _filled("", "# comment\n", VERSION), "edbc"),
    "blank lines": (lambda: _filled("", "\n", VERSION), "edbc"),
    "spaces": (lambda: _filled("", " ", VERSION), ""),
    "dashes": (lambda: _filled("", "- "), "expected a mapping"),
    "question marks": (lambda: _filled("", "? "), ""),
    "brackets": (lambda: _filled("", "["), "expected "),  # a mapping, or less depth, which PyYAML 6.0.4 bounds
    "braces": (lambda: _filled("", "{"), ""),
    "brackets in a field": (lambda: _filled(VERSION + "edbc: ", "["), "expected a version for 'edbc', got a list"),
    "brackets in training": (lambda: _around("  training", "    deep: " + "[" * 1_000_000 + "\n"), ""),
    "mappings in training": (lambda: _around("  training", "    deep: " + "{a: " * 1_000_000 + "\n"), ""),
    "deep indentation": (lambda: "\n".join(" " * i + "a:" for i in range(3_000)).encode(), "as the first key"),
    "long word": (lambda: _filled(VERSION + "edbc: ", "a", "\n...\n"), "for 'edbc'"),
    "long quoted text": (lambda: _filled(VERSION + 'edbc: "', "a", '"\n...\n'), "for 'edbc'"),
    "long wide text": (lambda: _filled(VERSION + 'edbc: "\U0001f600', "a", '"\n...\n'), "for 'edbc'"),
    "long text, wide at its end": (lambda: _filled(VERSION + 'edbc: "', "a", '\U0001f600"\n...\n'), "for 'edbc'"),
    "long text, wide escape last": (lambda: _filled(VERSION + 'edbc: "', "a", '\\U0001F600"\n...\n'), "for 'edbc'"),
    "long text of wide characters": (lambda: _filled(VERSION + 'edbc: "', "\U0001f600", '"\n...\n'), "for 'edbc'"),
    "long text of escapes": (lambda: _filled(VERSION + 'edbc: "', "\\U0001F600", '"\n...\n'), "for 'edbc'"),
    "long folded text": (lambda: _filled(VERSION + "edbc: >\n", "  a\n\n", "...\n"), "for 'edbc'"),
    "long text on many lines": (lambda: _filled(VERSION + 'edbc: "', "a\n\n ", '"\n...\n'), ""),
    "long word on many lines": (lambda: _filled(VERSION + "edbc: a", "\n a", "\n...\n"), "for 'edbc'"),
    "unclosed text": (lambda: _filled(VERSION + 'edbc: "', "a"), "expected YAML"),
    "unclosed key": (lambda: _filled(VERSION, "a"), ""),
    "long key": (lambda: _filled(VERSION + '? "', "a", '"\n: 1\n...\n'), "a key of 'plan'"),
    "long anchor": (lambda: _filled(VERSION + "edbc: &", "a", " 1\n...\n"), "anchor"),
    "long tag": (lambda: _filled(VERSION + "edbc: !", "a", " 1\n...\n"), "the tag"),
    "long directive": (lambda: _filled("%", "a", "\n--- 1\n"), ""),
    "many directives": (lambda: _filled("", "%TAG !a! tag:a\n", "--- 1\n"), ""),
    "many documents": (lambda: _filled("", "--- 1\n"), "expected a mapping"),
    "many list items": (lambda: _filled(VERSION + "requirements: [", "a>=1,", "a>=1]\n...\n"), "at most 100 items"),
    "many operations": (lambda: _around("    operations", "    - i = sigmoid(v1)\n" * 200_000), "at most 10,000 items"),
    "many states": (lambda: _around("  table", _keys(600_000, "out")), "at most 100,000 keys"),
    "many config keys": (lambda: _around("  config", _keys(700_000, "0")), "at most 1,000 keys"),
    "many training values": (
        lambda: _around("  training", _keys(330, f"[{', '.join(['0'] * 999)}]")), "at most 300,000 values"
    ),
    "many cells": (lambda: VALID.replace("guards:", "".join(
        f"  c{i}: {{operations: [x = input()], batches: [], layout: [x], weights: [], copies: 0}}\n"
        for i in range(20_000)) + "guards:").encode(), "at most 10,000 keys"),
    "long operation": (lambda: edited("sigmoid(v1)", f"sum({', '.join(['v1'] * 2_000_000)})"), "4,000 characters"),
    "long operations": (_long_operations, "operations of at most 1,000,000 characters in all"),
    "states that mean nothing": (lambda: _around("  table", _keys(99_000, "out")), "unknown type 's0'"),
}  # fmt: skip
